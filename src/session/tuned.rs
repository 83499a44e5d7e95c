//! In: a compiled graph and options; out: the same with the fastest configurations, and pipelines that an earlier start
//! has compiled. What is kept in files is found and left here.

use super::{CompileOptions, Compiled, Session};
use crate::cache;
use crate::debug::show;
use crate::error::Error;
use crate::gpu::Counters;
use crate::tune::{CompileMode, Device, Progress, TuneReport, Tuning, TuningCache, file_name, tune, warn};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a session keeps of files.
#[derive(Clone, Default)]
pub(super) struct Kept(Arc<Mutex<Files>>);

#[derive(Default)]
struct Files {
    /// What the program has brought along.
    preloaded: Option<TuningCache>,
    /// The sum of the pipelines as they are in their file.
    pipelines: Option<u32>,
    /// Pipelines made when they were last looked at.
    made: u64,
    /// What went wrong with pipelines, for the next program's report.
    warnings: Vec<String>,
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Takes what an earlier tuning found, from a file that a program has brought along: it goes before the models of
    /// kernels, whether a program is tuned or not.
    ///
    /// # Errors
    /// If it is for another adapter, driver or version of kiln; nothing of it is used then.
    pub fn preload(&self, cache: &TuningCache) -> Result<(), Error> {
        cache.fits(&TuningCache::empty(self.adapter()))?;
        let mut files = self.kept.lock();
        match &mut files.preloaded {
            Some(there) => there.extend(cache.entries().iter().cloned()),
            none => *none = Some(cache.clone()),
        }
        Ok(())
    }

    /// Where tunings of this adapter are kept; `None` where nothing is.
    pub fn tuning_file(&self, options: &CompileOptions) -> Option<PathBuf> {
        Some(options.cache.path()?.join(file_name(self.adapter())))
    }

    /// Finds the fastest configurations for a graph that was compiled for this device, as
    /// [`CompileMode::MaxAutotune`] does, and tells how far it is. The result's choices go into
    /// [`CompileOptions::choices`].
    ///
    /// # Errors
    /// If the device fails. A cache that cannot be used is a warning in the report.
    pub fn tune(
        &self,
        compiled: &Compiled,
        options: &CompileOptions,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Tuning, Error> {
        self.open_pipelines(options);
        let device = Device {
            gpu: &self.gpu,
            caps: &self.limits(options).usable(),
            precision: options.precision,
            checked: options.checked,
        };
        let preloaded = self.kept.lock().preloaded.clone();
        let path = self.tuning_file(options);
        let (given, tune_options) = (&options.choices, &options.tune);
        let tuning =
            tune(&device, &compiled.graph, given, preloaded.as_ref(), path.as_deref(), tune_options, progress)?;
        Ok(tuning)
    }

    /// A graph with the fastest configurations, if that is asked for.
    pub(crate) fn tuned(&self, compiled: Compiled, options: &CompileOptions) -> Result<Compiled, Error> {
        if options.compile_mode == CompileMode::Default {
            return Ok(compiled);
        }
        let mut tell = |p: &Progress| {
            tracing::info!(done = p.done, total = p.total, problem = %p.problem, "tuning");
        };
        let Tuning { choices, report } = self.tune(&compiled, options, &mut tell)?;
        tracing::info!(seconds = report.seconds, problems = report.answers.len(), "tuned");
        show(1, "tuned", || Box::new(report.clone()));
        let mut compiled = compiled.with(&self.limits(options), &CompileOptions { choices, ..options.clone() })?;
        report.warnings.iter().for_each(|words| compiled.report.add("tune", words.as_str()));
        Ok(Compiled { tuning: Some(report), ..compiled })
    }

    /// The options with what was preloaded.
    pub(crate) fn with_preloaded(&self, options: &CompileOptions) -> CompileOptions {
        let files = self.kept.lock();
        let Some(preloaded) = &files.preloaded else { return options.clone() };
        let limits = crate::tune::Limits::of(&self.limits(options).usable(), options.checked);
        let mut choices = preloaded.choices(&limits);
        choices.extend(options.choices.iter().map(|(problem, config)| (problem.clone(), config)));
        CompileOptions { choices, ..options.clone() }
    }

    fn pipelines_file(&self, options: &CompileOptions) -> Option<PathBuf> {
        let info = self.adapter();
        let words = [info.name.as_str(), &info.driver, &info.backend, env!("CARGO_PKG_VERSION")];
        let name = cache::file_name("pipelines", &words, "bin");
        Some(options.cache.path().filter(|_| self.gpu.keeps_pipelines())?.join(name))
    }

    /// Gives the driver what an earlier start has compiled, ahead of the first pipeline of a session.
    pub(super) fn open_pipelines(&self, options: &CompileOptions) {
        let Some(path) = self.pipelines_file(options) else { return };
        let mut files = self.kept.lock();
        if files.pipelines.is_some() {
            return;
        }
        let sealed = cache::read(&path).unwrap_or_else(|error| {
            warn(
                &mut files.warnings,
                format!("{}: compiled pipelines cannot be read and are made anew: {error}", path.display()),
            );
            None
        });
        let bytes = sealed.as_deref().and_then(cache::unseal);
        if sealed.is_some() && bytes.is_none() {
            warn(
                &mut files.warnings,
                format!("{}: not a whole file of compiled pipelines, which are made anew", path.display()),
            );
        }
        files.pipelines = Some(bytes.map_or(0, crc32fast::hash));
        self.gpu.give_pipelines(bytes);
    }

    /// What went wrong with compiled pipelines since it was last asked for, without ending anything.
    pub(super) fn pipeline_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.kept.lock().warnings)
    }

    /// Keeps what was compiled, if something was.
    pub(super) fn save_pipelines(&self, options: &CompileOptions) {
        let Some(path) = self.pipelines_file(options) else { return };
        let counters: &Counters = self.gpu.counters();
        let made = counters.pipelines.load(Ordering::Relaxed);
        let mut files = self.kept.lock();
        if files.made == made {
            return;
        }
        files.made = made;
        let Some(bytes) = self.gpu.compiled_pipelines() else { return };
        let sum = crc32fast::hash(&bytes);
        if files.pipelines == Some(sum) {
            return;
        }
        match cache::replace(&path, &cache::seal(&bytes)) {
            Ok(()) => files.pipelines = Some(sum),
            Err(error) => {
                warn(
                    &mut files.warnings,
                    format!("{}: compiled pipelines are not kept: {error}; {}", path.display(), cache::ADVICE),
                );
            }
        }
    }
}

impl Compiled {
    /// What was measured, if it was tuned.
    pub fn tuning(&self) -> Option<&TuneReport> {
        self.tuning.as_ref()
    }
}
