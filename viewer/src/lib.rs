//! In: trace files and live runs; out: a window that shows where their time goes. Free of native-only code: files are
//! reached through [`files::Files`], live runs through [`live::Backend`].
//!
//! [`model`] decides what is shown, as plain data; [`panels`] paint it; [`state::State`] is what they share, with one
//! selection for all; [`app::Viewer`] is the window around them.

pub mod app;
pub mod colour;
pub mod files;
pub mod live;
mod memo;
pub mod model;
pub mod panels;
pub mod sample;
pub mod state;
