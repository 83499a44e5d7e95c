//! In: answers; out: a file of them for one adapter, driver and version of the kernels, and what such a file holds. Knows
//! nothing of how they were found.
//!
//! What another adapter, driver or version has measured, or limits that differ, is not used.

use crate::cache;
use crate::caps::DeviceCaps;
use crate::gpu::AdapterInfo;
use crate::kernel::{Choices, Config, Problem, fingerprint};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// The format of the file.
const FORMAT: u32 = 1;

/// What a tuning found on one adapter, with one driver and one version of the kernels. It can be shipped with a program:
/// [`TuningCache::load`] or [`TuningCache::from_json`], then [`Session::preload`](crate::Session::preload).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningCache {
    format: u32,
    /// kiln's version.
    kiln: String,
    /// A number of the kernels' templates.
    source: String,
    adapter: String,
    driver: String,
    backend: String,
    entries: Vec<Entry>,
}

/// The limits that a choice was made under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// Invocations of a workgroup.
    pub max_invocations: u32,
    /// Bytes of a binding.
    pub max_binding_bytes: u64,
    /// Kernels are those for a CPU that acts as a GPU.
    pub cpu: bool,
    /// Kernels have run-time checks.
    pub checked: bool,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What it was found under.
    pub limits: Limits,
    /// The kernel, all that changes it, and its sizes.
    pub problem: Problem,
    /// What was chosen.
    pub config: Config,
    /// The time of the model's choice, nanoseconds.
    pub default_ns: u64,
    /// The time of what was chosen.
    pub best_ns: u64,
}

/// Why a tuning file is not used.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum TuningError {
    /// It cannot be read or written.
    #[error("{0}")]
    File(String),
    /// It is no tuning file, or not all of one.
    #[error("it is not a whole tuning file: {0}")]
    Corrupt(String),
    /// It is from elsewhere.
    #[error("it is for {what} {got}, this is {expected}")]
    Other {
        /// Format, version, kernels, adapter, driver or backend.
        what: &'static str,
        /// What it must be for.
        expected: String,
        /// What it is for.
        got: String,
    },
}

impl Entry {
    pub(super) fn default_time(&self) -> Duration {
        Duration::from_nanos(self.default_ns)
    }

    pub(super) fn best_time(&self) -> Duration {
        Duration::from_nanos(self.best_ns)
    }
}

impl Limits {
    /// Those of a device's caps that change what is the fastest.
    pub fn of(caps: &DeviceCaps, checked: bool) -> Limits {
        Limits {
            workgroup_bytes: caps.workgroup_bytes,
            max_invocations: caps.max_invocations,
            max_binding_bytes: caps.max_binding_bytes,
            cpu: caps.cpu,
            checked,
        }
    }
}

/// The name of an adapter's file.
pub fn file_name(info: &AdapterInfo) -> String {
    let TuningCache { kiln, source, adapter, driver, backend, .. } = TuningCache::empty(info);
    cache::file_name("tuning", &[&adapter, &driver, &backend, &kiln, &source], "json")
}

impl TuningCache {
    /// One without entries, for this adapter and these kernels.
    pub fn empty(info: &AdapterInfo) -> TuningCache {
        TuningCache {
            format: FORMAT,
            kiln: env!("CARGO_PKG_VERSION").into(),
            source: format!("{:08x}", fingerprint()),
            adapter: info.name.clone(),
            driver: info.driver.clone(),
            backend: info.backend.clone(),
            entries: Vec::new(),
        }
    }

    /// What a file holds; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read or is not a whole tuning file.
    pub fn load(path: &Path) -> Result<Option<TuningCache>, TuningError> {
        let bytes = cache::read(path).map_err(|e| TuningError::File(e.to_string()))?;
        bytes.map(|bytes| TuningCache::from_json(&bytes)).transpose()
    }

    /// What the bytes of a file hold.
    ///
    /// # Errors
    /// If they are not those of a whole tuning file.
    pub fn from_json(bytes: &[u8]) -> Result<TuningCache, TuningError> {
        // a later format may have other fields
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let corrupt = |e: serde_json::Error| TuningError::Corrupt(e.to_string());
        let Format { format } = serde_json::from_slice(bytes).map_err(corrupt)?;
        other("format", &FORMAT.to_string(), &format.to_string())?;
        serde_json::from_slice(bytes).map_err(corrupt)
    }

    /// The bytes of a file.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("numbers, words and lists of them are JSON")
    }

    /// Adds what is here to a file, in place of what it holds for the same problems. Another process that does so at
    /// once loses nothing; a file that cannot be used is replaced.
    ///
    /// # Errors
    /// If the file cannot be read, or the directory or the file be made.
    pub fn add_to(&self, path: &Path) -> Result<(), TuningError> {
        let merged = |old: Option<Vec<u8>>| {
            let old = old.and_then(|bytes| TuningCache::from_json(&bytes).ok());
            let mut all = old.filter(|old| old.fits(self).is_ok()).unwrap_or_else(|| self.clone());
            all.extend(self.entries.iter().cloned());
            all.to_json()
        };
        cache::update(path, merged).map_err(|e| TuningError::File(e.to_string()))
    }

    /// Whether it is for the same adapter, driver and kernels as another.
    ///
    /// # Errors
    /// Names what differs.
    pub fn fits(&self, other_cache: &TuningCache) -> Result<(), TuningError> {
        other("kiln", &other_cache.kiln, &self.kiln)?;
        other("kernels", &other_cache.source, &self.source)?;
        other("adapter", &other_cache.adapter, &self.adapter)?;
        other("driver", &other_cache.driver, &self.driver)?;
        other("backend", &other_cache.backend, &self.backend)
    }

    /// What it holds for a problem under limits.
    pub fn get(&self, limits: &Limits, problem: &Problem) -> Option<&Entry> {
        self.entries.iter().find(|e| e.problem == *problem && e.limits == *limits)
    }

    /// What it holds under limits, for [`select`](crate::select::select).
    pub fn choices(&self, limits: &Limits) -> Choices {
        let mut choices = Choices::default();
        let fitting = self.entries.iter().filter(|e| e.limits == *limits);
        choices.extend(fitting.map(|e| (e.problem.clone(), e.config)));
        choices
    }

    /// All entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.entries
    }
}

/// Newer entries take the place of older ones; entries are in the order of their problems.
impl Extend<Entry> for TuningCache {
    fn extend<I: IntoIterator<Item = Entry>>(&mut self, more: I) {
        for entry in more {
            self.entries.retain(|e| e.problem != entry.problem || e.limits != entry.limits);
            self.entries.push(entry);
        }
        self.entries.sort_by(|a, b| a.problem.cmp(&b.problem));
    }
}

fn other(what: &'static str, expected: &str, got: &str) -> Result<(), TuningError> {
    match expected == got {
        true => Ok(()),
        false => Err(TuningError::Other { what, expected: expected.into(), got: got.into() }),
    }
}
