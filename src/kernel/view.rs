//! In: strided looks at tensors; out: the same looks with fewer dimensions, and the windows that bindings need.

use super::{KernelError, Operand, View, split};
use crate::caps::DeviceCaps;
use crate::graph::Shape;

impl View {
    /// A dense tensor seen whole.
    pub fn dense(shape: &Shape) -> View {
        View { offset: 0, dims: shape.dims().to_vec(), strides: shape.strides() }
    }

    /// Whether elements lie in row-major order without gaps, from wherever the view starts.
    pub fn is_dense(&self) -> bool {
        let mut expected = 1;
        for (d, s) in self.dims.iter().zip(&self.strides).rev() {
            if *d != 1 && *s != expected {
                return false;
            }
            expected *= d;
        }
        true
    }

    /// The number of elements seen.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// One past the largest element index seen, 0 if nothing is.
    pub fn end(&self) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        self.offset + 1 + self.dims.iter().zip(&self.strides).map(|(d, s)| (d - 1) * s).sum::<usize>()
    }

    /// Stretched to `dims` as NumPy broadcasts; the caller has checked that it can be.
    pub fn broadcast(&self, dims: &[usize]) -> View {
        let lead = dims.len() - self.dims.len();
        let strides = (0..dims.len())
            .map(|i| if i < lead || self.dims[i - lead] == 1 { 0 } else { self.strides[i - lead] })
            .collect();
        View { offset: self.offset, dims: dims.to_vec(), strides }
    }

    /// Dimensions in another order.
    pub fn permute(&self, perm: &[usize]) -> View {
        let pick = |v: &[usize]| perm.iter().map(|p| v[*p]).collect();
        View { offset: self.offset, dims: pick(&self.dims), strides: pick(&self.strides) }
    }

    /// A range along one axis.
    pub fn slice(&self, axis: usize, start: usize, len: usize) -> View {
        let mut view = self.clone();
        view.offset += start * view.strides[axis];
        view.dims[axis] = len;
        view
    }

    /// With all dimensions but the last merged as far as strides can say so; the view has one dimension at least.
    pub fn merge_lead(&self) -> View {
        let last = self.dims.len() - 1;
        let (mut dims, strides) = coalesce(&self.dims[..last], &[&self.strides[..last]]);
        dims.push(self.dims[last]);
        let strides = [strides.concat(), vec![self.strides[last]]].concat();
        View { offset: self.offset, dims, strides }
    }

    /// As a matrix whose rows are its innermost dimension, if strides can say so and neighbours in a row are contiguous.
    pub fn rows(&self) -> Option<View> {
        if self.dims.is_empty() {
            return None;
        }
        let merged = self.merge_lead();
        let contiguous = merged.dims.last() == Some(&1) || merged.strides.last() == Some(&1);
        (merged.dims.len() == 2 && contiguous).then_some(merged)
    }

    /// The same elements in another shape, if strides can say so: always for a dense view.
    pub fn reshape(&self, shape: &Shape) -> Option<View> {
        self.is_dense().then(|| View { offset: self.offset, dims: shape.dims().to_vec(), strides: shape.strides() })
    }
}

/// Merges neighbouring dimensions that every stride list steps through as one, and drops those of size 1. At least
/// one dimension is left.
pub fn coalesce(dims: &[usize], strides: &[&[usize]]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut out_dims: Vec<usize> = Vec::new();
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); strides.len()];
    for (i, &d) in dims.iter().enumerate() {
        if d == 1 {
            continue;
        }
        let merges = out_dims.last().is_some() && strides.iter().zip(&out).all(|(s, o)| o[o.len() - 1] == s[i] * d);
        if merges {
            *out_dims.last_mut().expect("what merges has a dimension before it") *= d;
            for (s, o) in strides.iter().zip(&mut out) {
                *o.last_mut().expect("it is as long as out_dims") = s[i];
            }
        } else {
            out_dims.push(d);
            for (s, o) in strides.iter().zip(&mut out) {
                o.push(s[i]);
            }
        }
    }
    if out_dims.is_empty() {
        out_dims.push(1);
        out.iter_mut().for_each(|o| o.push(0));
    }
    (out_dims, out)
}

/// The binding that covers elements `first..end` of a tensor, and the index of `first` within it. `operand` and
/// `what` name it in an error.
pub fn window(
    kernel: &'static str,
    operand: usize,
    what: &str,
    first: usize,
    end: usize,
    element: usize,
    caps: &DeviceCaps,
) -> Result<(Operand<usize>, usize), KernelError> {
    // nothing is seen of a view without elements, wherever it starts
    let (start, stop) = ((first * element) as u64, (end.max(first) * element) as u64);
    let offset = start / caps.storage_align * caps.storage_align;
    // bindings are whole words
    let bytes = (stop - offset).div_ceil(16) * 16;
    let limit = split::limit(caps);
    if bytes > limit {
        return Err(KernelError::Binding { kernel, operand, what: what.to_owned(), wanted: bytes, limit });
    }
    Ok((Operand { tensor: operand, offset, bytes }, first - offset as usize / element))
}
