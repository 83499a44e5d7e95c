//! In: a trace, a selection and a filter; out: what each panel shows, as plain data. Knows neither egui nor files.

pub mod compare;
pub mod document;
pub mod memory;
pub mod roofline;
pub mod selection;
pub mod table;
pub mod timeline;
pub mod tree;
pub mod units;
