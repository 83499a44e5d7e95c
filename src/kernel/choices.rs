//! In: launches that could be made otherwise, and sizes; out: [`Problem`], all that decides which way is the fastest,
//! the [`Config`]s that a device can run, and [`Choices`], a table from one to the other. Measures nothing.
//!
//! A kernel with a choice makes its launch by a model of the device. Select asks the table, which is empty unless
//! something was measured, and makes the launch over with what stands there. A kernel of another form, or with tiles of
//! another kind, takes part by a variant of [`Config`] and an arm in [`Launch::problem`], [`Launch::configs`] and
//! [`Launch::configured`].

use super::attend_units::Form;
use super::attention_grad::Tiles;
use super::linear_stack::{StackTile, UnitsTile};
use super::matmul::{SLICES_WORTH, Tile};
use super::{KernelKey, Launch};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What a choice is made for, in words: the kernel, all of its key but what is chosen, and its sizes. Equal ones have
/// the same fastest [`Config`] on a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Problem(pub String);

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One way of several to do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Config {
    /// A product's tile.
    Tile(Tile),
    /// Length of the slices that a product's K is cut into; 0 is K as a whole.
    Slice(usize),
    /// Queries and keys of an attention's block.
    Block(usize, usize),
    /// How an attention's gradient cuts pairs.
    Tiles(Tiles),
    /// How subgroups share an attention's pairs on matrix units.
    Subgroups(Form),
    /// Rows of an invocation of a direct kernel of attention.
    Rows(usize),
    /// How a stack of layers deals out rows.
    Stack(StackTile),
    /// How a stack of layers on matrix units does.
    StackUnits(UnitsTile),
}

/// What a configuration must take of the model's choice's time at most to be chosen instead: less is noise.
const WORTH: f64 = 0.98;

impl Config {
    /// What it must take of the time of the model's choice at most to be chosen instead, each measured by itself.
    pub(crate) fn worth(&self, instead_of: Config) -> f64 {
        match (instead_of, self) {
            (Config::Slice(0), Config::Slice(_)) => SLICES_WORTH,
            _ => WORTH,
        }
    }
}

/// `128x96x16, 8x8 each`, `slices of 256`, `64x32`, `64x32, 8 columns at once`.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Config::Tile(t) if t.k == 0 => write!(f, "{}x{} direct, {}x{} each", t.m, t.n, t.tm, t.tn),
            Config::Tile(t) => write!(f, "{}x{}x{}, {}x{} each", t.m, t.n, t.k, t.tm, t.tn),
            Config::Slice(0) => f.write_str("whole"),
            Config::Slice(k) => write!(f, "slices of {k}"),
            Config::Block(queries, keys) => write!(f, "{queries}x{keys}"),
            Config::Subgroups(form) => form.fmt(f),
            Config::Stack(t) => write!(f, "{} rows, split {}, unroll {}", t.rows, t.split, t.unroll),
            Config::StackUnits(t) => {
                write!(f, "{} rows, {} subgroups, {} ahead, {} staged", t.rows, t.subs, t.ahead, t.stages)
            }
            Config::Rows(rows) => write!(f, "{rows} rows each"),
            Config::Tiles(t) => match t.chunk {
                Some(chunk) => write!(f, "{}x{}, {} columns at once", t.own, t.other, 4 * chunk),
                None => write!(f, "{}x{}, whole rows", t.own, t.other),
            },
        }
    }
}

/// What suits an operand of a kernel: the numbers that candidates are timed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Numbers {
    /// Of this type: floats between this and its negative, or any words.
    Any(DType, f32),
    /// Biased exponents of the largest of such floats, up to 1.
    Exponents,
}

impl Numbers {
    /// Their stored type.
    pub fn dtype(self) -> DType {
        match self {
            Numbers::Any(dtype, _) => dtype,
            Numbers::Exponents => DType::U32,
        }
    }
}

/// What was found to be the fastest. Empty, the kernels' models decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices(BTreeMap<Problem, Config>);

impl Choices {
    /// What stands there for a problem.
    pub fn get(&self, problem: &Problem) -> Option<Config> {
        self.0.get(problem).copied()
    }

    /// Sets what a problem gets.
    pub fn insert(&mut self, problem: Problem, config: Config) {
        self.0.insert(problem, config);
    }

    /// All of them by problem.
    pub fn iter(&self) -> impl Iterator<Item = (&Problem, Config)> {
        self.0.iter().map(|(problem, config)| (problem, *config))
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Extend<(Problem, Config)> for Choices {
    fn extend<I: IntoIterator<Item = (Problem, Config)>>(&mut self, more: I) {
        self.0.extend(more);
    }
}

impl<T> Launch<T> {
    /// What its choice is made for; `None` where a kernel has no choice.
    pub fn problem(&self) -> Option<Problem> {
        match &self.key {
            KernelKey::Matmul(key) => Some(key.problem(&self.params)),
            KernelKey::Attention(key) => Some(key.problem(&self.params, self.groups)),
            KernelKey::AttentionGrad(key) => Some(key.problem(&self.params, self.groups)),
            KernelKey::LinearStack(key) => Some(key.problem(&self.params)),
            _ => None,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> Option<Config> {
        match &self.key {
            KernelKey::Matmul(key) => Some(Config::Tile(key.tile)),
            KernelKey::Attention(key) => Some(key.config()),
            KernelKey::AttentionGrad(key) => Some(key.config()),
            KernelKey::LinearStack(key) => Some(key.config()),
            _ => None,
        }
    }

    /// All that the device can run in its place, those that the model finds good first.
    pub fn configs(&self, caps: &DeviceCaps) -> Vec<Config> {
        match &self.key {
            KernelKey::Matmul(key) => key.configs(&self.params, caps),
            KernelKey::Attention(key) => key.configs(&self.params, caps),
            KernelKey::AttentionGrad(key) => key.configs(&self.params, caps),
            KernelKey::LinearStack(key) => key.configs(&self.params, caps),
            _ => Vec::new(),
        }
    }

    /// The same work with one of [`Launch::configs`]; one of another kernel changes nothing.
    pub fn configured(mut self, config: Config) -> Launch<T> {
        match (&mut self.key, config) {
            (KernelKey::Matmul(key), Config::Tile(tile)) => self.groups = key.configure(&mut self.params, tile),
            (KernelKey::LinearStack(key), config) => self.groups = key.configure(&mut self.params, config),
            (KernelKey::Attention(key), config) => {
                self.groups = key.configure(&mut self.params, self.groups, config);
            }
            (KernelKey::AttentionGrad(key), config) => {
                self.groups = key.configure(&mut self.params, self.groups, config);
            }
            _ => {}
        }
        self
    }
}

impl KernelKey {
    /// What suits each binding, in the order of [`KernelKey::bindings`], of kernels that have a choice and of those that go
    /// with them; a mask of words counts as U32, whatever is in them.
    pub fn operand_numbers(&self) -> Option<Vec<Numbers>> {
        let types = match self {
            KernelKey::Matmul(key) => return Some(key.operand_numbers()),
            KernelKey::SumParts(key) => [DType::F32, key.to].repeat(1 + usize::from(key.second)),
            KernelKey::Attention(key) => key.operand_types(),
            KernelKey::AttentionGrad(key) => key.operand_types(),
            KernelKey::LinearStack(key) => return Some(key.operand_numbers()),
            _ => return None,
        };
        Some(types.into_iter().map(|dtype| Numbers::Any(dtype, 1.0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::MatrixUnits;
    use crate::graph::{Activation, AttentionAttrs, Chain, Shape};
    use crate::kernel::attention::Attention;
    use crate::kernel::attention_grad::{AttentionGrad, Side};
    use crate::kernel::linear_stack::{Forward, Weights};
    use crate::kernel::matmul::{Matmul, OnUnits};
    use crate::kernel::tests::check;
    use crate::kernel::units::{Exponents, Units};
    use crate::kernel::{KernelError, View};

    fn dense(dims: &[usize]) -> View {
        View::dense(&Shape::from(dims.to_vec()))
    }

    /// Launches with a choice: products, whole and in slices, attention and its gradients.
    fn launches(caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        let (identity, mut all) = (Chain::identity(), Vec::new());
        let (a, b) = (dense(&[1000, 96]).permute(&[1, 0]), dense(&[1000, 200]));
        let (c, slices, sums) = (dense(&[96, 200]), dense(&[4, 96, 200]), dense(&[4, 96]));
        let product = |slice, c, sums, units| {
            let (dtype, a, b, epilogue, extras) = (DType::F32, &a, &b, &identity, &[][..]);
            Matmul { dtype, out: dtype, a, b, c, epilogue, extras, in_place: None, slice, sums, units }.launches(caps)
        };
        all.extend(product(None, &c, None, None)?);
        all.extend(product(Some(256), &slices, Some(&sums), None)?);
        let attrs =
            AttentionAttrs { heads: 3, scale: 0.125.into(), causal: true, mask: false, lengths: false, dropout: None };
        let (q, k) = (&dense(&[2, 70, 192]), &dense(&[2, 90, 192]));
        let dtype = DType::F16;
        all.extend(Attention { attrs, dtype, q, k, v: k, mask: None, lse: true, units: None }.launches(caps)?);
        for side in [Side::Keys, Side::Queries] {
            // dk and dv in one tensor
            let results = &[Some((0, q.clone())), Some((1, k.clone())), Some((1, k.clone()))];
            let grad = AttentionGrad { attrs, dtype, q, k, v: k, dout: q, mask: None, results, units: None };
            all.extend(grad.launches(side, caps)?);
        }
        if !caps.cpu {
            // on units, with exponents of f32 operands
            let units = Units { units: MatrixUnits::Device { side: 16, lanes: 32 }, split: true };
            let exponents = |rows| Exponents { view: dense(&[rows]), parts: 1, part: rows };
            let (of_a, of_b) = (exponents(96), exponents(200));
            all.extend(product(None, &c, None, Some(OnUnits { units, exponents: Some([&of_a, &of_b]) }))?);
            let (dtype, x, w) = (DType::F32, &dense(&[300, 64]), &dense(&[5, 64, 64]));
            for w in [Weights::Dense(w), Weights::Packed(5, units)] {
                let stack = Forward { activation: Activation::Relu, dtype, rows: 300, x, w, b: None, keep: true };
                all.extend(stack.launches(caps)?);
            }
        }
        Ok(all)
    }

    #[test]
    fn a_launch_takes_every_configuration_and_its_own_again() {
        let large = DeviceCaps { workgroup_bytes: 48 << 10, max_invocations: 1024, f16: true, ..DeviceCaps::PORTABLE };
        for caps in [DeviceCaps { f16: true, ..DeviceCaps::PORTABLE }, large.clone(), DeviceCaps { cpu: true, ..large }]
        {
            for launch in launches(&caps).unwrap() {
                let configs = launch.configs(&caps);
                let own = launch.config().unwrap();
                assert_eq!(configs[0], own, "the model's choice comes first: {launch:?}");
                assert!(configs.len() > 1, "{launch:?}");
                let numbers = launch.key.operand_numbers().unwrap();
                assert_eq!(numbers.len(), launch.key.bindings().len());
                for config in &configs {
                    assert_eq!(configs.iter().filter(|c| *c == config).count(), 1, "{config} twice");
                    let other = launch.clone().configured(*config);
                    check(std::slice::from_ref(&other), &caps);
                    assert_eq!(other.config(), Some(*config));
                    assert_eq!(other.problem(), launch.problem());
                    assert!(other.key.workgroup_size() <= caps.max_invocations, "{config}");
                    assert!(other.key.workgroup_bytes() <= caps.workgroup_bytes as usize, "{config}");
                    assert_eq!(other.configured(own), launch, "{config}");
                }
            }
        }
    }

    #[test]
    fn problems_tell_apart_what_is_launched_otherwise() {
        let caps = DeviceCaps { f16: true, ..DeviceCaps::PORTABLE };
        let all = launches(&caps).unwrap();
        let mut problems: Vec<Problem> = all.iter().map(|l| l.problem().unwrap()).collect();
        let words = [
            "matmul f32 1x96x200x1000 a:mx4 b:nx4 c:f32x4",
            "matmul f32 4x96x200x256 a:mx4 b:nx4 c:f32x4 sliced sums",
            "attention f16x4 2x3 70x90x64 causal lse",
            "attention_grad dk,dv f16x4 2x3 70x90x64 causal",
            "attention_grad dq f16x4 2x3 70x90x64 causal",
            "matmul f32 1x96x200x1000 a:mx4 b:nx4 c:f32x4 Device { side: 16, lanes: 32 } split",
            "linear_stack f32 300x64 layers:5 Relu forward keep",
            "linear_stack f32 300x64 layers:5 Relu forward keep Device { side: 16, lanes: 32 } split",
        ];
        assert_eq!(problems.iter().map(|p| p.0.as_str()).collect::<Vec<_>>(), words);
        problems.sort();
        problems.dedup();
        assert_eq!(problems.len(), all.len());
    }
}
