//! In: the header of a safetensors file; out: every fault in it, by tensor. Knows the file format only.
//!
//! The `safetensors` crate validates as well, but stops at its first fault and often names no tensor.

use super::HeaderFault;
use crate::graph::Shape;
use safetensors::Dtype;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;

#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// Entries in the order of the file; a map would hide a name that stands twice.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let entry = map.next_value()?;
                        entries.push((name, entry));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// All faults of a header before `data` bytes of tensors; empty if it is valid.
pub(super) fn faults(header: &[u8], data: u64) -> Vec<HeaderFault> {
    let mut entries = match serde_json::from_slice::<Entries>(header) {
        Ok(Entries(entries)) => entries,
        Err(error) => return vec![HeaderFault::Json(error.to_string())],
    };
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    let mut faults = Vec::new();
    for pair in entries.windows(2) {
        if pair[0].0 == pair[1].0 {
            faults.push(HeaderFault::Duplicate { tensor: pair[0].0.clone() });
        }
    }
    for (name, entry) in &entries {
        check_entry(name, entry, data, &mut faults);
    }
    // after any of these, where one tensor ends says nothing of where the next begins
    let unplaced = |f: &HeaderFault| {
        matches!(f, HeaderFault::Duplicate { .. } | HeaderFault::Order { .. } | HeaderFault::PastEnd { .. })
    };
    if !faults.iter().any(unplaced) {
        check_order(&mut entries, data, &mut faults);
    }
    faults
}

fn check_entry(name: &str, entry: &Entry, data: u64, faults: &mut Vec<HeaderFault>) {
    let tensor = || name.to_owned();
    let (begin, end) = entry.data_offsets;
    if end > data {
        faults.push(HeaderFault::PastEnd { tensor: tensor(), end, data });
    }
    if begin > end {
        faults.push(HeaderFault::Order { tensor: tensor(), begin, end });
    }
    let Ok(dtype) = serde_json::from_value::<Dtype>(entry.dtype.clone().into()) else {
        faults.push(HeaderFault::DType { tensor: tensor(), got: entry.dtype.clone() });
        return;
    };
    let bits = entry.shape.iter().try_fold(dtype.bitsize() as u64, |a, &d| a.checked_mul(d as u64));
    let (dtype, shape) = (entry.dtype.clone(), Shape::new(entry.shape.clone()));
    match bits {
        None => faults.push(HeaderFault::Overflow { tensor: tensor(), dtype, shape }),
        // a part of a byte left over is the crate's to refuse
        Some(bits) if begin <= end && bits / 8 != end - begin => {
            faults.push(HeaderFault::Span { tensor: tensor(), dtype, shape, expected: bits / 8, got: end - begin });
        }
        Some(_) => {}
    }
}

fn check_order(entries: &mut [(String, Entry)], data: u64, faults: &mut Vec<HeaderFault>) {
    entries.sort_by_key(|(_, e)| e.data_offsets);
    let mut expected = 0;
    for (name, entry) in entries.iter() {
        let (begin, end) = entry.data_offsets;
        if begin != expected {
            faults.push(HeaderFault::Gap { tensor: name.clone(), expected, got: begin });
        }
        expected = end;
    }
    if expected < data {
        faults.push(HeaderFault::Trailing { expected, got: data });
    }
}
