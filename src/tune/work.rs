//! In: a selected graph and one of its decisions; out: [`Work`], the launches that depend on it over tensors of their
//! own, several times with other inputs. Knows no device.

use crate::kernel::{Access, KernelKey, Numbers};
use crate::select::{Decision, Selected, Step, TensorId, TensorKind, TensorSpec};

/// The launches of a candidate.
#[derive(Clone, Debug)]
pub(super) struct Work {
    steps: Vec<Step>,
    /// What is read and not made here.
    pub inputs: Vec<Space>,
    /// What is made for others, maybe from what is there.
    pub results: Vec<Space>,
    /// What is made and read here alone.
    workspaces: Vec<Space>,
}

/// A tensor of the selected graph.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Space {
    tensor: TensorId,
    /// Its size.
    pub bytes: u64,
    /// What it is filled with.
    pub numbers: Numbers,
}

impl Work {
    /// The launches of the decision's node that the decision is about: its own launch, or the product and what adds its
    /// slices up.
    pub fn of(selected: &Selected, decision: &Decision) -> Work {
        let of_node = || selected.steps.iter().filter(|s| s.node == decision.node);
        let own = of_node().find(|s| s.launch.problem().as_ref() == Some(&decision.problem));
        let product = |s: &&Step| matches!(s.launch.key, KernelKey::Matmul(_) | KernelKey::SumParts(_));
        let steps: Vec<Step> = match own {
            Some(step) => vec![step.clone()],
            None => of_node().filter(product).cloned().collect(),
        };
        let mut work = Work { steps: Vec::new(), inputs: Vec::new(), results: Vec::new(), workspaces: Vec::new() };
        for step in &steps {
            let suited = step.launch.key.operand_numbers().unwrap_or_default();
            for ((operand, access), numbers) in step.launch.operands.iter().zip(step.launch.key.bindings()).zip(suited)
            {
                let tensor = operand.tensor;
                let space = Space { tensor, bytes: selected.tensors[tensor.0].bytes, numbers };
                let made = work.results.iter().position(|s| s.tensor == tensor);
                match (made, access) {
                    (Some(at), Access::Read) => {
                        let space = work.results.remove(at);
                        work.workspaces.push(space);
                    }
                    (None, Access::ReadWrite) => work.results.push(space),
                    (None, Access::Read) => {
                        let seen = work.inputs.iter().chain(&work.workspaces);
                        if seen.clone().all(|s| s.tensor != tensor) {
                            work.inputs.push(space);
                        }
                    }
                    (Some(_), Access::ReadWrite) => {}
                }
            }
        }
        Work { steps, ..work }
    }

    /// Bytes of all inputs.
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|s| s.bytes).sum()
    }

    /// Launches that depend on the decision.
    pub fn launches(&self) -> usize {
        self.steps.len()
    }

    /// About how many terms each of the results' numbers has.
    pub fn terms(&self) -> f64 {
        let flops: f64 = self.steps.iter().map(|s| s.launch.estimate.flops).sum();
        let elements: u64 = self.results.iter().map(|s| s.bytes / s.numbers.dtype().size() as u64).sum();
        (flops / 2.0 / elements.max(1) as f64).max(1.0)
    }

    /// Whether another work reads and writes tensors of the same sizes.
    pub fn is_like(&self, other: &Work) -> bool {
        let sizes = |spaces: &[Space]| spaces.iter().map(|s| (s.bytes, s.numbers.dtype())).collect::<Vec<_>>();
        !self.steps.is_empty()
            && sizes(&self.inputs) == sizes(&other.inputs)
            && sizes(&self.results) == sizes(&other.results)
    }

    /// The launches `copies` times, each with inputs of its own and into the same results, so that none runs beside
    /// another. Tensors are the results, the inputs of each copy, then workspaces.
    pub fn program(&self, copies: usize) -> Selected {
        let inputs = |copy: usize| self.results.len() + copy * self.inputs.len();
        let find = |spaces: &[Space], tensor: TensorId| spaces.iter().position(|s| s.tensor == tensor);
        let place = |tensor: TensorId, copy: usize| {
            let at = find(&self.results, tensor)
                .or_else(|| Some(inputs(copy) + find(&self.inputs, tensor)?))
                .or_else(|| Some(inputs(copies) + find(&self.workspaces, tensor)?));
            TensorId(at.expect("every operand was put in one of the lists"))
        };
        let steps = (0..copies).flat_map(|copy| {
            self.steps.iter().map(move |s| Step {
                launch: s.launch.clone().map(|tensor| place(tensor, copy)),
                in_place: None,
                ..s.clone()
            })
        });
        // a state has a buffer of its own
        let spec = |s: &Space| TensorSpec { name: "tuned".into(), bytes: s.bytes, kind: TensorKind::State };
        let copied = (0..copies).flat_map(|_| &self.inputs);
        let tensors = self.results.iter().chain(copied).chain(&self.workspaces).map(spec).collect();
        Selected { tensors, steps: steps.collect(), ..Selected::default() }
    }

    /// Tensors of [`Work::program`] that all candidates of a decision share: results, then the inputs of each copy.
    pub fn shared(&self, copies: usize) -> Vec<&Space> {
        self.results.iter().chain((0..copies).flat_map(|_| &self.inputs)).collect()
    }
}

#[cfg(test)]
impl Space {
    pub fn new(bytes: u64, numbers: Numbers) -> Space {
        Space { tensor: TensorId(0), bytes, numbers }
    }
}
