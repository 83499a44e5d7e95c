//! In: a trainer; out: a folder of two files, its weights and all else that it goes on with, and back. Knows trainers,
//! their states and safetensors files.
//!
//! `model.safetensors` has every parameter under PyTorch's name and nothing else, so that
//! `load_state_dict(load_file(…), strict=True)` takes it. `optimizer.safetensors` has the moments of what is trained, each
//! under its parameter's name behind `adam.m.`, `adam.v.` or `sgd.momentum.`, and every other state behind `state.`; its
//! metadata hold the optimiser's name and betas, the seed and the number of steps, which the other file has as well.

use super::{Progress, Trainer, split, storages};
use crate::error::Error;
use crate::graph::{ParamLayout, Part, Shape, Storage, TensorType};
use crate::model::{Checkpoint, CheckpointError, Draft};
use crate::tensor::Tensor;
use crate::train::{COUNTERS, is_counter};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

const MODEL: &str = "model.safetensors";
const OPTIMISER: &str = "optimizer.safetensors";
/// The word of what moments are averages by.
const AVERAGES: &str = "averages";

/// The largest number of steps that a trainer goes on from.
const MOST_STEPS: u64 = 1 << 53;

impl Trainer {
    /// Writes the state after the last submitted step to a folder, which is made if it is not there. Both files are
    /// written beside their places first, so that what was there stays whole if this fails.
    ///
    /// # Errors
    /// If the files cannot be written or the device fails.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), Error> {
        let folder = folder.as_ref();
        let progress = self.lock();
        let mut weights = progress.frozen.clone();
        let mut others = BTreeMap::new();
        for (state, place) in self.places() {
            let whole = self.program.read_state(&state)?;
            match place {
                Place::Weights(storage) => weights.extend(split(storage, "", &whole)),
                Place::Moments(moment, storage) => {
                    let parts = storage.parts.iter().zip(split(storage, &format!("{moment}."), &whole));
                    // a storage that lift packed may have some that are frozen
                    others.extend(parts.filter(|(p, _)| self.training.trains(p)).map(|(_, kept)| kept));
                }
                Place::Other => {
                    others.insert(format!("state.{state}"), whole);
                }
            }
        }
        let word = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut words = BTreeMap::from([
            word("format", "pt"),
            word("step", &progress.steps.to_string()),
            // both files have it, so that those of two trainings are told apart at the same step
            word("save", &format!("{:016x}", RandomState::new().hash_one(progress.steps))),
        ]);
        let io = |source| CheckpointError::Io { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(io)?;
        let model = Draft::write(&folder.join(MODEL), &weights, &words)?;
        words.extend([word("optimiser", self.options.optimiser.name()), word("seed", &progress.seed.to_string())]);
        words.extend(self.options.optimiser.averages().map(|averages| word(AVERAGES, &averages)));
        let optimiser = Draft::write(&folder.join(OPTIMISER), &others, &words)?;
        Ok(Draft::publish_both(optimiser, model)?)
    }

    /// Goes on from a folder that [`Trainer::save`] wrote: weights, moments, every other state, the number of steps and
    /// the seed of dropout are then as they were. The trainer must be of the same model, optimiser with the same betas and
    /// frozen parameters; how it is compiled, its learning rate and its optimiser's other settings, its micro-batches, its
    /// precision and whether it skips steps may differ: what it counts for these begins anew where the file does not have
    /// it.
    ///
    /// # Errors
    /// If a file is missing, malformed, of another model or optimiser, or the two were not saved together; then
    /// nothing has changed. If the device fails.
    pub fn load(&self, folder: impl AsRef<Path>) -> Result<(), Error> {
        let folder = folder.as_ref();
        let model = Checkpoint::open(folder.join(MODEL))?;
        let optimiser = Checkpoint::open(folder.join(OPTIMISER)).map_err(|e| cut_short(folder, &model).unwrap_or(e))?;
        let mut parameters = ParamLayout::default();
        for (_, storage) in storages(&self.program.compiled().graph).filter(|(trained, _)| *trained) {
            storage.parts.iter().for_each(|p| {
                parameters.add(&p.name, storage.dtype, p.shape.clone());
            });
        }
        for (name, value) in &self.lock().frozen {
            parameters.add(name, value.ty().dtype, value.shape().clone());
        }
        let mut others = ParamLayout::default();
        for (state, place) in self.places() {
            match place {
                Place::Weights(_) => {}
                Place::Moments(moment, storage) => {
                    storage.parts.iter().filter(|p| self.training.trains(p)).for_each(|p| {
                        others.add(&format!("{moment}.{}", p.name), storage.dtype, p.shape.clone());
                    });
                }
                // whether a training has them depends on options that may differ
                Place::Other if is_counter(&state) && optimiser.shape(&format!("state.{state}")).is_none() => {}
                Place::Other => {
                    let ty = self.program.state_type(&state)?;
                    others.add(&format!("state.{state}"), ty.dtype, ty.shape.clone());
                }
            }
        }
        for (counter, dtype) in COUNTERS {
            let name = format!("state.{counter}");
            if !self.program.states().any(|s| s == counter)
                && let Some(shape) = optimiser.shape(&name)
            {
                others.add(&name, dtype, shape.clone());
            }
        }
        // what kind of file it is comes before its tensors' names, which follow from that
        optimiser.expect(
            "optimiser",
            self.options.optimiser.name(),
            "make the trainer with the optimiser it was saved with",
        )?;
        if let (Some(averages), Some(_)) = (self.options.optimiser.averages(), optimiser.metadata(AVERAGES)) {
            optimiser.expect(AVERAGES, &averages, "make the trainer with the betas it was saved with")?;
        }
        let steps: u64 = optimiser.number("step", Some(MOST_STEPS))?;
        let seed: u64 = optimiser.number("seed", None)?;
        let same_step = model.expect("step", &steps.to_string(), "take both files of one save");
        let same_save = optimiser.metadata("save").map(|s| model.expect("save", s, "take both files of one save"));
        same_step.and(same_save.unwrap_or(Ok(()))).map_err(|e| cut_short(folder, &model).unwrap_or(e))?;
        let (weights, others) = (model.load_all(&parameters)?, optimiser.load_all(&others)?);

        let mut progress = self.lock();
        self.program.write_parameters(&weights)?;
        for (state, place) in self.places() {
            match place {
                Place::Weights(_) => {}
                Place::Moments(moment, storage) => {
                    let whole = join(storage, &format!("{moment}."), |name| others.tensor(name));
                    self.program.write_state(&state, &whole)?;
                }
                Place::Other => {
                    let zeros = || Ok::<_, Error>(Tensor::zeros(self.program.state_type(&state)?.clone()));
                    let value = others.tensor(&format!("state.{state}")).map_or_else(zeros, Ok)?;
                    self.program.write_state(&state, &value)?;
                }
            }
        }
        let frozen = progress.frozen.keys().filter_map(|name| Some((name.clone(), weights.tensor(name)?))).collect();
        *progress = Progress { steps, seed, frozen };
        Ok(())
    }

    /// Every state of the program, and where it goes.
    fn places(&self) -> Vec<(String, Place<'_>)> {
        let trained: BTreeMap<&str, &Storage> = storages(&self.program.compiled().graph)
            .filter(|(trained, _)| *trained)
            .map(|(_, s)| (s.name.as_str(), s))
            .collect();
        let place = |state: String| {
            if let Some(storage) = trained.get(state.as_str()) {
                return (state, Place::Weights(storage));
            }
            for moment in self.options.optimiser.moments() {
                let of = state.strip_prefix(moment).and_then(|s| s.strip_prefix('.')).and_then(|s| trained.get(s));
                if let Some(storage) = of {
                    return (state, Place::Moments(moment, storage));
                }
            }
            (state, Place::Other)
        };
        self.program.states().map(|s| place(s.to_owned())).collect()
    }
}

/// What to do where a save was ended after it put the optimiser's file aside that belongs to a model.
fn cut_short(folder: &Path, model: &Checkpoint) -> Option<CheckpointError> {
    let path = Draft::aside(&folder.join(OPTIMISER));
    let aside = Checkpoint::open(&path).ok()?;
    let save = aside.metadata("save")?;
    (model.metadata("save") == Some(save)).then_some(CheckpointError::CutShort { path, name: OPTIMISER, other: MODEL })
}

/// Where a state goes.
enum Place<'a> {
    Weights(&'a Storage),
    /// The start of its name, and whose moments they are.
    Moments(&'static str, &'a Storage),
    Other,
}

/// A storage's value out of its parts, each under its own name behind `prefix`; zeros where there is none.
fn join(storage: &Storage, prefix: &str, part: impl Fn(&str) -> Option<Tensor>) -> Tensor {
    let ty = |shape: &Shape| TensorType::new(storage.dtype, shape.clone());
    let value = |p: &Part| part(&format!("{prefix}{}", p.name)).unwrap_or_else(|| Tensor::zeros(ty(&p.shape)));
    let bytes = storage.parts.iter().flat_map(|p| value(p).bytes().to_vec()).collect();
    Tensor::from_bytes(ty(&storage.shape), bytes)
}
