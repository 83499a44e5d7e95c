//! In: sizes; out: [`Shape`], [`DType`] and [`TensorType`], the types of values. Knows nothing else.

use half::{bf16, f16};
use std::fmt;

/// The element type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16; sums are kept in [`DType::F32`].
    F16,
    /// bfloat16: only in files, converted when a checkpoint is loaded.
    BF16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Truth value; takes four bytes on a device, since WGSL cannot store a `bool`.
    Bool,
}

impl DType {
    /// Bytes an element takes in a device buffer.
    pub fn size(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 | DType::U32 | DType::Bool => 4,
        }
    }

    /// Whether this is F32, F16 or BF16.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether this is I32 or U32.
    pub fn is_integer(self) -> bool {
        matches!(self, DType::I32 | DType::U32)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::Bool => "bool",
        })
    }
}

/// The nearest f16, ties to even.
pub(crate) fn nearest_f16(x: f64) -> f16 {
    f16::from_f32(round_to_odd(x))
}

/// The nearest bf16, ties to even.
pub(crate) fn nearest_bf16(x: f64) -> bf16 {
    bf16::from_f32(round_to_odd(x))
}

/// f64 → f32 such that a further rounding to f16 or bf16 gives what one rounding would: what is cut off leaves the last
/// bit set. (half's `from_f64` rounds twice on processors with F16C, and elsewhere forgets the lowest bits.) Boldo and
/// Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.
fn round_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let mut bits = nearest.to_bits();
    if f64::from(nearest).abs() > x.abs() {
        bits -= 1;
    }
    if f64::from(nearest) != x {
        bits |= 1;
    }
    f32::from_bits(bits)
}

/// The sizes of a value, outermost dimension first; a scalar has none. Values are row-major and dense.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// A shape of these sizes.
    pub fn new(dims: impl Into<Vec<usize>>) -> Self {
        Shape(dims.into())
    }

    /// The sizes.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements; saturates instead of wrapping.
    pub fn elements(&self) -> usize {
        self.0.iter().fold(1, |a: usize, &b| a.saturating_mul(b))
    }

    /// The distance in elements between neighbours along each dimension; saturates.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1usize; self.0.len()];
        for i in (1..self.0.len()).rev() {
            strides[i - 1] = strides[i].saturating_mul(self.0[i]);
        }
        strides
    }

    /// The last size, 1 for a scalar.
    pub fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// The number of rows along the last dimension: the product of all sizes but the last; saturates.
    pub fn rows(&self) -> usize {
        self.0[..self.0.len().saturating_sub(1)].iter().fold(1, |a: usize, &b| a.saturating_mul(b))
    }

    /// NumPy's broadcast of two shapes: sizes aligned at the right, 1 stretches. `Err` holds the dimension of the
    /// result, counted from the left, at which they differ.
    pub fn broadcast(&self, other: &Shape) -> Result<Shape, usize> {
        let rank = self.rank().max(other.rank());
        let at = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |j| s.0[j]);
        let mut dims = Vec::with_capacity(rank);
        for i in 0..rank {
            let (a, b) = (at(self, i), at(other, i));
            dims.push(match (a, b) {
                _ if a == b => a,
                (1, _) => b,
                (_, 1) => a,
                _ => return Err(i),
            });
        }
        Ok(Shape(dims))
    }

    /// The stride in elements of this dense value along each dimension of `target`, 0 where it is stretched.
    /// The caller has checked that `self` broadcasts to `target`.
    pub fn broadcast_strides(&self, target: &Shape) -> Vec<usize> {
        let own = self.strides();
        let lead = target.rank() - self.rank();
        (0..target.rank()).map(|i| if i < lead || self.0[i - lead] == 1 { 0 } else { own[i - lead] }).collect()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(dims.to_vec())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape(dims.to_vec())
    }
}

/// `(2, 48, 64)`; a scalar is `()`, a vector of three `(3)`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Element type and shape of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Shape,
}

impl TensorType {
    /// A type of these parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        TensorType { dtype, shape: shape.into() }
    }

    /// Bytes of a dense value of this type on a device; saturates.
    pub fn bytes(&self) -> usize {
        self.shape.elements().saturating_mul(self.dtype.size())
    }
}

/// `f32 (2, 48, 64)`.
impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)
    }
}
