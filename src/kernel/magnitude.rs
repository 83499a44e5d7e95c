//! In: the types and sizes of dense tensors; out: launches of magnitude.wgsl that find the largest magnitude of all
//! their elements, as many tensors in each as a device binds. Knows no other kernel.

use super::split::{self, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, Operand, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use minijinja::context;

pub(super) const NAME: &str = "magnitude";

/// What changes magnitude.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MagnitudeKey {
    /// Type of the elements: F32 or F16.
    pub from: DType,
    /// Tensors that are read.
    pub count: usize,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl MagnitudeKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let values = context! {
            f16 => self.from == DType::F16, count => self.count, stored => wgsl_type(self.from), size => self.size,
            side => split::side(self.size),
        };
        template::render(NAME, params, values)
    }

    /// The tensors, the result.
    pub fn bindings(&self) -> Vec<Access> {
        [vec![Access::Read; self.count], vec![Access::ReadWrite]].concat()
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        std::iter::once("groups".to_owned()).chain((0..self.count).map(|i| format!("n{i}"))).collect()
    }
}

/// Elements that a workgroup reads at least before there is another.
const GROUP: usize = 16_384;

/// A tensor or a part of one that a binding covers.
#[derive(Clone)]
struct Piece {
    window: Operand<usize>,
    elements: usize,
}

/// The largest magnitude of all elements of tensors of these types and sizes, of which one at least has elements.
/// Operands: the tensors, the result, then workspaces in F32, of which the number of elements of each comes second.
pub fn launches(
    tensors: &[(DType, usize)],
    caps: &DeviceCaps,
) -> Result<(Vec<Launch<usize>>, Vec<usize>), KernelError> {
    let (mut launches, mut workspaces) = (Vec::new(), Vec::new());
    let mut level: Vec<(DType, usize, usize)> = // type, operand, elements
        tensors.iter().enumerate().map(|(operand, (dtype, elements))| (*dtype, operand, *elements)).collect();
    // a launch that binds fewer could put nothing together
    let most = (caps.max_storage_buffers as usize).saturating_sub(1).max(2);
    loop {
        let mut batches: Vec<(DType, Vec<Piece>)> = Vec::new();
        for from in [DType::F32, DType::F16] {
            let mut pieces = Vec::new();
            for (_, operand, elements) in level.iter().filter(|(dtype, ..)| *dtype == from) {
                split::float(NAME, from, caps)?;
                pieces.extend(self::pieces(*operand, from, *elements, caps)?);
            }
            batches.extend(pieces.chunks(most).map(|batch| (from, batch.to_vec())));
        }
        let of = |batch: &[Piece]| batch.iter().map(|p| p.elements).sum::<usize>();
        if let [(from, batch)] = &batches[..]
            && of(batch) <= 4 * GROUP
        {
            launches.push(launch(*from, batch, 1, tensors.len(), caps)?);
            return Ok((launches, workspaces));
        }
        level.clear();
        for (from, batch) in &batches {
            let (groups, to) = (of(batch).div_ceil(GROUP), tensors.len() + 1 + workspaces.len());
            launches.push(launch(*from, batch, groups, to, caps)?);
            workspaces.push(groups);
            level.push((DType::F32, to, groups));
        }
    }
}

/// A tensor in pieces that a binding covers.
fn pieces(operand: usize, dtype: DType, elements: usize, caps: &DeviceCaps) -> Result<Vec<Piece>, KernelError> {
    let quads = elements.div_ceil(4);
    let tensor = Rows::cut(operand, quads, 4 * dtype.size() as u64);
    let windows = split::windows(NAME, quads, &[tensor], caps)?;
    let piece = |rows: &std::ops::Range<usize>| Piece {
        window: tensor.window(rows),
        elements: (4 * rows.end).min(elements) - 4 * rows.start,
    };
    Ok(windows.iter().map(piece).collect())
}

fn launch(
    from: DType,
    batch: &[Piece],
    groups: usize,
    to: usize,
    caps: &DeviceCaps,
) -> Result<Launch<usize>, KernelError> {
    let elements: usize = batch.iter().map(|p| p.elements).sum();
    let size = split::workgroup(NAME, elements.div_ceil(4), DType::U32.size() as u32, caps)?;
    let sizes = batch.iter().map(|p| ("elements", p.elements));
    let result = Operand { tensor: to, offset: 0, bytes: (groups * DType::F32.size()) as u64 };
    Ok(Launch {
        key: KernelKey::Magnitude(MagnitudeKey { from, count: batch.len(), size }),
        params: split::sizes(NAME, std::iter::once(("groups", groups)).chain(sizes))?,
        groups: groups as u64,
        operands: batch.iter().map(|p| p.window.clone()).chain([result]).collect(),
        estimate: Estimate {
            flops: elements as f64,
            bytes: (elements * from.size() + groups * DType::F32.size()) as f64,
        },
    })
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let forms = [DType::F32, DType::F16].into_iter().flat_map(|from| [1, 2, 7].map(|count| (from, count)));
    forms
        .flat_map(|(from, count)| [64, 256].map(|size| KernelKey::Magnitude(MagnitudeKey { from, count, size })))
        .collect()
}
