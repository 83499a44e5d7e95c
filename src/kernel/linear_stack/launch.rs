//! In: a stack's operands as views; out: the launch of its kernel, forwards or backwards.

use super::{Form, LinearStackKey, NAME, Pass, tile};
use crate::caps::DeviceCaps;
use crate::graph::{Activation, DType};
use crate::kernel::pack_weights::packed_bytes;
use crate::kernel::units::Units;
use crate::kernel::view::window;
use crate::kernel::{Estimate, KernelError, KernelKey, Launch, View, split};

/// The weights of a stack.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'a> {
    /// Dense: (L, in, out) forwards, (L, out, in) backwards.
    Dense(&'a View),
    /// The matrices of so many layers that pack_weights.wgsl has made, and of f32 ones what undoes their scales.
    Packed(usize, Units),
}

/// A stack forwards. Operands: x, weights, biases, y, what layers read, factors of packed weights.
pub struct Forward<'a> {
    /// What stands between layers.
    pub activation: Activation,
    /// Stored type of everything.
    pub dtype: DType,
    /// Rows of x.
    pub rows: usize,
    /// Dense, (…, N).
    pub x: &'a View,
    /// The weights.
    pub w: Weights<'a>,
    /// Dense, (L, N).
    pub b: Option<&'a View>,
    /// What each layer reads is stored, (L, …, N).
    pub keep: bool,
}

impl Forward<'_> {
    /// The launch.
    pub fn launches(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        let pass = Pass::Forward { bias: self.b.is_some(), keep: self.keep };
        let Forward { activation, dtype, rows, x, w, .. } = *self;
        let stack = Stack { pass, activation, dtype, rows, width: x.dims[x.dims.len() - 1], w };
        let read: Vec<_> = self.b.map(|b| (2, "the biases", b)).into_iter().collect();
        let mut written = vec![(3, "the result", 1)];
        written.extend(self.keep.then_some((4, "what the layers read", stack.layers())));
        Ok(vec![stack.launch((0, "x", x), [1, 5], &read, &written, caps)?])
    }
}

/// A stack backwards. Operands: weights, what layers read, y, dy, dx, dz, factors of packed weights.
pub struct Backward<'a> {
    /// What stands between layers.
    pub activation: Activation,
    /// Stored type of everything.
    pub dtype: DType,
    /// Rows of y.
    pub rows: usize,
    /// The weights.
    pub w: Weights<'a>,
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
        let width = self.dy.dims[self.dy.dims.len() - 1];
        let stack = Stack { pass: Pass::Backward, activation, dtype, rows, width, w };
        let read = [(1, "what the layers read", self.kept), (2, "y", self.y)];
        let written = [(4, "dx", 1), (5, "the gradient of the sums", stack.layers())];
        Ok(vec![stack.launch((3, "dy", self.dy), [0, 6], &read, &written, caps)?])
    }
}

/// What both passes have in common.
struct Stack<'a> {
    pass: Pass,
    activation: Activation,
    dtype: DType,
    rows: usize,
    width: usize,
    w: Weights<'a>,
}

impl Stack<'_> {
    fn layers(&self) -> usize {
        match self.w {
            Weights::Dense(w) => w.dims[0],
            Weights::Packed(layers, _) => layers,
        }
    }

    fn form(&self, caps: &DeviceCaps) -> Result<Form, KernelError> {
        let Weights::Packed(_, units) = self.w else {
            return Ok(Form::MultiplyAdds(tile::tile(self.width, self.rows, caps)?));
        };
        let tiles = tile::units_tiles(self.width, self.rows, self.dtype, units, caps);
        Ok(Form::Units(units, *tiles.first().expect("weights are packed where `takes_units` says so")))
    }

    /// Over operands in the order of their bindings: what the first layer reads, weights and their factors, whose
    /// positions are given, what else is read, with where it lies, and what is written, from its first element on, with
    /// how many layers of rows it has.
    fn launch(
        &self,
        x: (usize, &str, &View),
        [at_w, at_factors]: [usize; 2],
        read: &[(usize, &str, &View)],
        written: &[(usize, &str, usize)],
        caps: &DeviceCaps,
    ) -> Result<Launch<usize>, KernelError> {
        split::float(NAME, self.dtype, caps)?;
        let (layers, width, size) = (self.layers(), self.width, self.dtype.size());
        let (dtype, activation, pass) = (self.dtype, self.activation, self.pass);
        let key = LinearStackKey { dtype, width, activation, pass, form: self.form(caps)? };
        let groups = self.rows.div_ceil(key.rows());
        let sizes = [("groups", groups), ("rows", self.rows), ("layers", layers), ("zero", 0)];
        let mut params = split::sizes(NAME, sizes)?;
        let (mut operands, mut bytes) = (Vec::new(), 0);
        let mut bind = |(operand, what, view): (usize, &str, &View)| {
            let (window, first) = window(NAME, operand, what, view.offset, view.end(), size, caps)?;
            params.push((first / 4) as u32);
            operands.push(window);
            bytes += view.elements() * size;
            Ok(())
        };
        bind(x)?;
        if let Weights::Dense(w) = self.w {
            bind((at_w, "the weights", w))?;
        }
        for operand in read {
            bind(*operand)?;
        }
        for (operand, what, layers) in written {
            let elements = layers * self.rows * width;
            operands.push(window(NAME, *operand, what, 0, elements, size, caps)?.0);
            bytes += elements * size;
        }
        if let Weights::Packed(_, units) = self.w {
            let whole = |operand, what, bytes| Ok(window(NAME, operand, what, 0, bytes, 1, caps)?.0);
            let [matrices, factors] = packed_bytes(layers, width, dtype, units);
            let mut packed = vec![whole(at_w, "the weights", matrices)?];
            if factors > 0 {
                packed.push(whole(at_factors, "the factors of weights", factors)?);
            }
            // behind x
            operands.splice(1..1, packed);
            bytes += matrices + factors;
        }
        let of_one = (2 * width + key.chain().steps.len()) as f64;
        let flops = (layers * self.rows * width) as f64 * of_one;
        let estimate = Estimate { flops, bytes: bytes as f64 };
        Ok(Launch { key: KernelKey::LinearStack(key), params, groups: groups as u64, operands, estimate })
    }
}
