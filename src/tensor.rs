//! In: host data; out: [`Tensor`], a dense array with its type, as it crosses the API. Knows only types.

use crate::graph::{DType, Shape, TensorType, nearest_bf16, nearest_f16};
use half::{bf16, f16};
use std::fmt;

/// A dense row-major array on the host. A Bool takes four bytes, 0 or 1, as on the device.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    ty: TensorType,
    bytes: Vec<u8>,
}

impl Tensor {
    /// From f32 values; `values.len()` must be the shape's number of elements.
    ///
    /// # Panics
    /// If the numbers of elements differ.
    #[track_caller]
    pub fn f32(shape: impl Into<Shape>, values: &[f32]) -> Tensor {
        let ty = TensorType::new(DType::F32, shape);
        check_count(&ty, values.len());
        Tensor::from_bytes(ty, bytemuck::cast_slice(values).to_vec())
    }

    /// From i32 values; see [`Tensor::f32`].
    ///
    /// # Panics
    /// If the numbers of elements differ.
    #[track_caller]
    pub fn i32(shape: impl Into<Shape>, values: &[i32]) -> Tensor {
        let ty = TensorType::new(DType::I32, shape);
        check_count(&ty, values.len());
        Tensor::from_bytes(ty, bytemuck::cast_slice(values).to_vec())
    }

    /// From raw little-endian elements.
    ///
    /// # Panics
    /// If `bytes` is not the type's size.
    #[track_caller]
    pub fn from_bytes(ty: TensorType, bytes: Vec<u8>) -> Tensor {
        let (elements, size, expected) = (ty.shape.elements(), ty.dtype.size(), ty.bytes());
        let got = bytes.len();
        assert!(
            expected == got,
            "a tensor of {ty} takes {expected} bytes, {elements} elements of {size}, got {got} bytes"
        );
        Tensor { ty, bytes }
    }

    /// From f64 values, converted to the type (rounded to nearest even; to Bool: not zero).
    ///
    /// # Panics
    /// If the numbers of elements differ.
    #[track_caller]
    pub fn from_f64(ty: TensorType, values: &[f64]) -> Tensor {
        check_count(&ty, values.len());
        let bytes = match ty.dtype {
            DType::F32 => values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
            DType::F16 => values.iter().flat_map(|v| nearest_f16(*v).to_le_bytes()).collect(),
            DType::BF16 => values.iter().flat_map(|v| nearest_bf16(*v).to_le_bytes()).collect(),
            DType::I32 => values.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect(),
            DType::U32 => values.iter().flat_map(|v| (*v as u32).to_le_bytes()).collect(),
            DType::Bool => values.iter().flat_map(|v| u32::from(*v != 0.0).to_le_bytes()).collect(),
        };
        Tensor::from_bytes(ty, bytes)
    }

    /// All zero.
    pub fn zeros(ty: TensorType) -> Tensor {
        let bytes = vec![0; ty.bytes()];
        Tensor { ty, bytes }
    }

    /// Element type and shape.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// The elements as little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Every element as f64.
    pub fn to_f64(&self) -> Vec<f64> {
        let b = &self.bytes;
        let four = || b.chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]);
        let two = || b.chunks_exact(2).map(|c| [c[0], c[1]]);
        match self.ty.dtype {
            DType::F32 => four().map(|c| f64::from(f32::from_le_bytes(c))).collect(),
            DType::F16 => two().map(|c| f16::from_le_bytes(c).to_f64()).collect(),
            DType::BF16 => two().map(|c| bf16::from_le_bytes(c).to_f64()).collect(),
            DType::I32 => four().map(|c| f64::from(i32::from_le_bytes(c))).collect(),
            DType::U32 => four().map(|c| f64::from(u32::from_le_bytes(c))).collect(),
            DType::Bool => four().map(|c| f64::from(u32::from_le_bytes(c).min(1))).collect(),
        }
    }

    /// Every element as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        match self.ty.dtype {
            DType::F32 => self.bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect(),
            _ => self.to_f64().iter().map(|v| *v as f32).collect(),
        }
    }

    /// The same numbers in another element type.
    pub fn cast(&self, dtype: DType) -> Tensor {
        if dtype == self.ty.dtype {
            return self.clone();
        }
        Tensor::from_f64(TensorType { dtype, shape: self.ty.shape.clone() }, &self.to_f64())
    }
}

#[track_caller]
fn check_count(ty: &TensorType, got: usize) {
    let expected = ty.shape.elements();
    assert!(expected == got, "a tensor of {ty} takes {expected} elements, got {got}; give as many or another shape");
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head: Vec<f64> = self.to_f64().into_iter().take(8).collect();
        write!(f, "Tensor({}, {head:?}…)", self.ty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{UnwindSafe, catch_unwind};

    #[test]
    fn another_number_of_elements_is_told() {
        fn panics(make: impl FnOnce() -> Tensor + UnwindSafe) -> String {
            *catch_unwind(make).unwrap_err().downcast::<String>().unwrap()
        }
        let ty = |dtype| TensorType::new(dtype, [2, 3]);
        let five = "takes 6 elements, got 5; give as many or another shape";
        assert_eq!(panics(|| Tensor::f32([2, 3], &[0.0; 5])), format!("a tensor of f32 (2, 3) {five}"));
        assert_eq!(panics(|| Tensor::i32([2, 3], &[0; 5])), format!("a tensor of i32 (2, 3) {five}"));
        assert_eq!(
            panics(move || Tensor::from_f64(ty(DType::F16), &[0.0; 5])),
            format!("a tensor of f16 (2, 3) {five}")
        );
        assert_eq!(
            panics(move || Tensor::from_bytes(ty(DType::F16), vec![0; 11])),
            "a tensor of f16 (2, 3) takes 12 bytes, 6 elements of 2, got 11 bytes"
        );
    }

    #[test]
    fn narrow_numbers_are_rounded_once() {
        let bits = |dtype, values: &[f64]| -> Vec<u16> {
            let tensor = Tensor::from_f64(TensorType::new(dtype, [values.len()]), values);
            tensor.bytes().as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect()
        };
        // at and just beside the middle of two neighbours of 1, and what is too large
        let around = |digits: i32| {
            let middle = 1.0 + 2f64.powi(-digits);
            [middle, middle + 2f64.powi(-40), middle - 2f64.powi(-40), -middle - 2f64.powi(-40), 1e300]
        };
        assert_eq!(bits(DType::F16, &around(11)), [0x3C00, 0x3C01, 0x3C00, 0xBC01, 0x7C00]);
        assert_eq!(bits(DType::BF16, &around(8)), [0x3F80, 0x3F81, 0x3F80, 0xBF81, 0x7F80]);
        assert!(bits(DType::F16, &[f64::NAN])[0] & 0x7FFF > 0x7C00);
    }
}
