//! In: a trainer; out: its weights and all else that it goes on with, in two files, and back. Knows trainers and files.
