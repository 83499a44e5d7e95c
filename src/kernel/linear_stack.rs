//! In: a stack of linear layers of one width, forwards or backwards; out: launches of `linear_stack.wgsl`, which carries
//! rows through all its layers. Knows no other kernel.

use super::chain_wgsl::{Printer, name};
use super::split;
use super::template::render;
use super::view::window;
use super::{Access, Config, Estimate, KernelError, KernelKey, Launch, ParamSpace, Problem, View, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::{Activation, Chain, DType};
use minijinja::context;
use serde::{Deserialize, Serialize};

pub(super) const NAME: &str = "linear_stack";

/// How a workgroup's work is dealt to its invocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StackTile {
    /// Rows that a workgroup carries.
    pub rows: usize,
    /// Parts of the inner dimension, 1, 2 or 4.
    pub split: usize,
    /// Groups of four inner elements whose weights are fetched together.
    pub unroll: usize,
}

/// Which way a stack is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// From its input to its result.
    Forward {
        /// Layers have biases.
        bias: bool,
        /// What each layer reads is stored.
        keep: bool,
    },
    /// From the gradient of its result to that of its input.
    Backward,
}

/// All that changes the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinearStackKey {
    /// Stored type of everything.
    pub dtype: DType,
    /// Columns of a layer's input and result.
    pub width: usize,
    /// What stands between layers.
    pub activation: Activation,
    /// Which way.
    pub pass: Pass,
    /// The workgroup.
    pub tile: StackTile,
}

impl LinearStackKey {
    /// Name and use of each operand.
    fn operands(&self) -> Vec<(&'static str, Access)> {
        let (read, written) = (Access::Read, Access::ReadWrite);
        match self.pass {
            Pass::Forward { bias, keep } => {
                let all = [("x", read, true), ("w", read, true), ("b", read, bias), ("y", written, true)];
                let all = all.into_iter().chain([("kept", written, keep)]);
                all.filter(|o| o.2).map(|(name, access, _)| (name, access)).collect()
            }
            Pass::Backward => {
                vec![("x", read), ("w", read), ("kept", read), ("y", read), ("dx", written), ("dz", written)]
            }
        }
    }

    /// What a tile is chosen for.
    pub(super) fn problem(&self, params: &[u32]) -> Problem {
        let (rows, layers) = (params[1], params[2]);
        let pass = match self.pass {
            Pass::Forward { bias, keep } => {
                ["forward", if bias { " bias" } else { "" }, if keep { " keep" } else { "" }].concat()
            }
            Pass::Backward => "backward".to_owned(),
        };
        Problem(format!("{NAME} {} {rows}x{} layers:{layers} {:?} {pass}", self.dtype, self.width, self.activation))
    }

    /// The tiles that a device can run.
    pub(super) fn configs(&self, params: &[u32], caps: &DeviceCaps) -> Vec<Config> {
        tiles(self.width, params[1] as usize, caps).map(Config::Stack).collect()
    }

    /// Takes another tile, changes what depends on it, and returns the number of workgroups.
    pub(super) fn configure(&mut self, params: &mut [u32], tile: StackTile) -> u64 {
        self.tile = tile;
        params[0] = params[1].div_ceil(tile.rows as u32);
        u64::from(params[0])
    }

    /// The stored type of each binding and the size of its numbers, such that they neither grow nor shrink from layer to
    /// layer.
    pub(super) fn operand_types(&self) -> Vec<(DType, f32)> {
        let weights = (6.0 / self.width as f32).sqrt();
        let size = |name: &str| if name == "w" { weights } else { 1.0 };
        self.operands().into_iter().map(|(name, _)| (self.dtype, size(name))).collect()
    }

    fn chain(&self) -> Chain {
        match self.pass {
            Pass::Forward { bias, .. } => self.activation.forward(bias),
            Pass::Backward => self.activation.backward(),
        }
    }

    /// The kernel as WGSL.
    pub fn source(&self, params: ParamSpace) -> String {
        let access = |a| if a == Access::Read { "read" } else { "read_write" };
        let bindings: Vec<(&str, &str)> = self.operands().into_iter().map(|(n, a)| (n, access(a))).collect();
        let printer = Printer { compute: DType::F32, width: 4, zero: "p.zero" };
        let chain = self.chain();
        let (bias, keep) = match self.pass {
            Pass::Forward { bias, keep } => (bias, keep),
            Pass::Backward => (false, false),
        };
        let StackTile { rows, split, unroll } = self.tile;
        let values = context! {
            scalar => wgsl_type(self.dtype), width => self.width, rows, split, unroll,
            threads => self.workgroup_size(), regions => self.tile.regions(),
            backward => self.pass == Pass::Backward, bias, keep, bindings,
            T => "vec4<f32>", steps => printer.steps(&chain), result => name(chain.result()),
        };
        render(NAME, params, values)
    }

    /// How each storage binding is used.
    pub fn bindings(&self) -> Vec<Access> {
        self.operands().into_iter().map(|(_, access)| access).collect()
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let mut names: Vec<&str> = "groups rows layers zero x_offset w_offset".split(' ').collect();
        match self.pass {
            Pass::Forward { bias, .. } => names.extend(bias.then_some("b_offset")),
            Pass::Backward => names.extend(["kept_offset", "y_offset"]),
        }
        names.into_iter().map(String::from).collect()
    }

    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> usize {
        self.tile.bytes(self.width)
    }

    /// Invocations in a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        self.tile.threads(self.width) as u32
    }
}

impl StackTile {
    /// Tiles of rows in workgroup memory.
    fn regions(self) -> usize {
        [1, 2, 3][self.split / 2]
    }

    fn bytes(self, width: usize) -> usize {
        self.regions() * self.rows * width * DType::F32.size()
    }

    fn threads(self, width: usize) -> usize {
        width / 4 * self.split
    }

    /// Whether layers of this width are dealt out without a rest.
    fn divides(self, width: usize) -> bool {
        self.rows.is_multiple_of(self.split) && (width / 4).is_multiple_of(self.split * self.unroll)
    }
}

/// How many rows a workgroup carries at most.
const ROWS: usize = 16;

/// Fewer rows of layers up to this width, whose workgroups have little to do, so that a core has several.
const NARROW: usize = 64;

/// The widest layers that are worth it: at 512 on an H200 a launch a layer is as fast.
const WIDEST: usize = 256;

/// Cores of the device that rows are dealt to: the adapter does not say how many it has.
const CORES: usize = 132;

/// The widest layers whose rows a workgroup of the device carries without a loss; 0 on a CPU that acts as a GPU, for
/// which workgroup memory is plain memory and a product a layer is faster.
pub fn widest(caps: &DeviceCaps) -> usize {
    if caps.cpu {
        return 0;
    }
    let fits = |width: &usize| tile(*width, usize::MAX, caps).is_ok_and(|t| t.rows >= ROWS / 2);
    (1..=WIDEST / 4).rev().map(|quads| 4 * quads).find(fits).unwrap_or(0)
}

/// As many rows as give every core a workgroup, up to [`ROWS`], then as many parts as fit.
fn tile(width: usize, rows: usize, caps: &DeviceCaps) -> Result<StackTile, KernelError> {
    if width == 0 || !width.is_multiple_of(4) {
        let expected = "a multiple of 4".to_owned();
        return Err(KernelError::Size { kernel: NAME, what: "the width of a layer", expected, got: width });
    }
    tiles(width, rows, caps).next().ok_or(KernelError::Workgroup {
        kernel: NAME,
        what: "bytes of workgroup memory",
        wanted: StackTile { rows: 1, split: 1, unroll: 1 }.bytes(width) as u32,
        limit: caps.workgroup_bytes,
    })
}

/// The tiles that a device can run for so many rows, the preferred first.
fn tiles(width: usize, rows: usize, caps: &DeviceCaps) -> impl Iterator<Item = StackTile> {
    let most = if width <= NARROW { ROWS / 2 } else { ROWS };
    let most = [4, 8].into_iter().find(|r| rows <= r * CORES).unwrap_or(ROWS).min(most);
    let of_rows = |rows| {
        let forms = [(4, 2), (4, 1), (2, 2), (2, 1), (1, 2), (1, 1)];
        forms.map(|(split, unroll)| StackTile { rows, split, unroll })
    };
    let (threads, bytes) = (caps.max_invocations.min(512) as usize, caps.workgroup_bytes as usize);
    let fits = move |t: &StackTile| t.threads(width) <= threads && t.bytes(width) <= bytes;
    let tiles = [16, 8, 4, 2, 1].into_iter().filter(move |r| *r <= most).flat_map(of_rows);
    tiles.filter(move |t| t.divides(width)).filter(fits)
}

/// A stack forwards. Operands: x, weights, biases, y, what layers read.
pub struct Forward<'a> {
    /// What stands between layers.
    pub activation: Activation,
    /// Stored type of everything.
    pub dtype: DType,
    /// Rows of x.
    pub rows: usize,
    /// Dense, (…, N).
    pub x: &'a View,
    /// Dense, (L, in, out).
    pub w: &'a View,
    /// Dense, (L, N).
    pub b: Option<&'a View>,
    /// What each layer reads is stored, (L, …, N).
    pub keep: bool,
}

impl Forward<'_> {
    /// The launch.
    pub fn launches(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        let pass = Pass::Forward { bias: self.b.is_some(), keep: self.keep };
        let stack = Stack { pass, activation: self.activation, dtype: self.dtype, rows: self.rows, w: self.w };
        let mut read = vec![(0, "x", self.x), (1, "the weights", self.w)];
        read.extend(self.b.map(|b| (2, "the biases", b)));
        let mut written = vec![(3, "the result", 1)];
        written.extend(self.keep.then_some((4, "what the layers read", stack.layers())));
        Ok(vec![stack.launch(&read, &written, caps)?])
    }
}

/// A stack backwards. Operands: weights, what layers read, y, dy, dx, dz.
pub struct Backward<'a> {
    /// What stands between layers.
    pub activation: Activation,
    /// Stored type of everything.
    pub dtype: DType,
    /// Rows of y.
    pub rows: usize,
    /// Dense, (L, out, in).
    pub w: &'a View,
    /// Dense, (L, …, N).
    pub kept: &'a View,
    /// Dense, (…, N).
    pub y: &'a View,
    /// Dense, (…, N).
    pub dy: &'a View,
}

impl Backward<'_> {
    /// The launch.
    pub fn launches(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        let Backward { activation, dtype, rows, w, .. } = *self;
        let stack = Stack { pass: Pass::Backward, activation, dtype, rows, w };
        let kept = (1, "what the layers read", self.kept);
        let read = [(3, "dy", self.dy), (0, "the weights", self.w), kept, (2, "y", self.y)];
        let written = [(4, "dx", 1), (5, "the gradient of the sums", stack.layers())];
        Ok(vec![stack.launch(&read, &written, caps)?])
    }
}

/// What both passes have in common.
struct Stack<'a> {
    pass: Pass,
    activation: Activation,
    dtype: DType,
    rows: usize,
    w: &'a View,
}

impl Stack<'_> {
    fn layers(&self) -> usize {
        self.w.dims[0]
    }

    /// Over operands in the order of their bindings: those read with where they lie, those written, from their first
    /// element on, with how many layers of rows they have.
    fn launch(
        &self,
        read: &[(usize, &str, &View)],
        written: &[(usize, &str, usize)],
        caps: &DeviceCaps,
    ) -> Result<Launch<usize>, KernelError> {
        split::float(NAME, self.dtype, caps)?;
        let (layers, width, size) = (self.layers(), self.w.dims[2], self.dtype.size());
        let tile = tile(width, self.rows, caps)?;
        let groups = self.rows.div_ceil(tile.rows);
        let sizes = [("groups", groups), ("rows", self.rows), ("layers", layers), ("zero", 0)];
        let mut params = split::sizes(NAME, sizes)?;
        let (mut operands, mut bytes) = (Vec::new(), 0);
        for (operand, what, view) in read {
            let (window, first) = window(NAME, *operand, what, view.offset, view.end(), size, caps)?;
            params.push((first / 4) as u32);
            operands.push(window);
            bytes += view.elements() * size;
        }
        for (operand, what, layers) in written {
            let elements = layers * self.rows * width;
            operands.push(window(NAME, *operand, what, 0, elements, size, caps)?.0);
            bytes += elements * size;
        }
        let key = LinearStackKey { dtype: self.dtype, width, activation: self.activation, pass: self.pass, tile };
        let of_one = (2 * width + key.chain().steps.len()) as f64;
        let flops = (layers * self.rows * width) as f64 * of_one;
        let estimate = Estimate { flops, bytes: bytes as f64 };
        Ok(Launch { key: KernelKey::LinearStack(key), params, groups: groups as u64, operands, estimate })
    }
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    let passes = [(false, false), (true, false), (true, true)].map(|(bias, keep)| Pass::Forward { bias, keep });
    let tiles = [(16, 1, 2), (4, 2, 1), (16, 4, 1), (8, 4, 2)];
    let tiles = tiles.map(|(rows, split, unroll)| StackTile { rows, split, unroll });
    for (i, activation) in Activation::ALL.into_iter().enumerate() {
        for pass in passes.into_iter().chain([Pass::Backward]) {
            for (width, tile) in [64, 96, 80, 256].into_iter().zip(tiles) {
                let dtype = if i % 2 == 0 { DType::F32 } else { DType::F16 };
                keys.push(KernelKey::LinearStack(LinearStackKey { dtype, width, activation, pass, tile }));
            }
        }
    }
    keys
}
