//! In: q, k and v as views with heads side by side; out: launches of `attention.wgsl`, or of `attention_direct.wgsl`
//! on a CPU that acts as a GPU and where limits are too small for tiles. Knows no other kernel.

use super::template::render;
use super::view::window;
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, View, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::{AttentionAttrs, DType};
use minijinja::context;

/// All that changes the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionKey {
    /// Stored type of q, k, v, mask and out.
    pub dtype: DType,
    /// q, k, v and out are bound as arrays of vec4.
    pub vec: bool,
    /// Groups of four columns of a head.
    pub columns: usize,
    /// Queries and keys of a block; `None` is the direct kernel.
    pub block: Option<(usize, usize)>,
    /// Keys in a query's future are hidden.
    pub causal: bool,
    /// An additive mask is bound.
    pub mask: bool,
    /// Lengths are bound.
    pub lengths: bool,
    /// The log-sum-exp is stored.
    pub lse: bool,
}

/// Queries of a workgroup of the direct kernel.
const DIRECT: usize = 8;

/// Blocks of queries and keys, the preferred first.
const BLOCKS: [(usize, usize); 5] = [(64, 32), (32, 32), (32, 16), (16, 16), (16, 8)];

impl AttentionKey {
    /// The file stem.
    pub fn name(&self) -> &'static str {
        if self.block.is_none() { "attention_direct" } else { "attention" }
    }

    /// The kernel as WGSL.
    pub fn source(&self, params: ParamSpace) -> String {
        let (br, bc) = self.block.unwrap_or((DIRECT, 4));
        let tx = bc / 4;
        let nc = self.columns.div_ceil(tx);
        render(
            self.name(),
            params,
            context! {
                f16 => self.dtype == DType::F16, scalar => wgsl_type(self.dtype), vec => self.vec,
                storage => super::chain_wgsl::vector(wgsl_type(self.dtype), if self.vec { 4 } else { 1 }),
                mask => self.mask, lengths => self.lengths, causal => self.causal, lse => self.lse,
                out_binding => 4 + usize::from(self.mask) + usize::from(self.lengths),
                columns => self.columns, threads => self.workgroup_size(), br, bc, tx, nc,
                kv => (self.columns * bc).max(bc * tx * nc),
            },
        )
    }

    /// How each storage binding is used.
    pub fn bindings(&self) -> Vec<Access> {
        let mut all = vec![Access::Read; 3 + usize::from(self.mask) + usize::from(self.lengths)];
        all.extend(vec![Access::ReadWrite; 1 + usize::from(self.lse)]);
        all
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let mut names: Vec<String> = "groups heads sq sk d blocks scale zero".split(' ').map(String::from).collect();
        for t in ["q", "k", "v", "o"] {
            names.extend(["offset", "batch", "row", "head"].map(|w| format!("{t}_{w}")));
        }
        if self.mask {
            names.extend(["m_offset", "m_batch", "m_row", "m_head", "m_col"].map(String::from));
        }
        names.extend(self.lengths.then(|| "lengths_offset".into()));
        names.extend(self.lse.then(|| "lse_offset".into()));
        names
    }

    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> usize {
        self.block.map_or(0, |b| block_bytes(b, self.columns))
    }

    /// Invocations in a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        self.block.map_or(DIRECT, |(br, bc)| br * bc / 16) as u32
    }
}

/// Bytes of workgroup memory that a block takes.
fn block_bytes((br, bc): (usize, usize), columns: usize) -> usize {
    let tx = bc / 4;
    let kv = (columns * bc).max(bc * tx * columns.div_ceil(tx));
    16 * (columns * br + kv + bc * (br / 4) + tx * (br / 4))
}

/// Operands: q, k, v, mask if any, lengths if any, out, log-sum-exp if it is stored.
pub struct Attention<'a> {
    /// Heads, scale and what is optional.
    pub attrs: AttentionAttrs,
    /// Stored type.
    pub dtype: DType,
    /// (B, Sq, H·D), neighbours in the width contiguous.
    pub q: &'a View,
    /// (B, Sk, H·D).
    pub k: &'a View,
    /// (B, Sk, H·D).
    pub v: &'a View,
    /// Stretched to (B, H, Sq, Sk).
    pub mask: Option<&'a View>,
    /// Whether the log-sum-exp is stored.
    pub lse: bool,
}

impl Attention<'_> {
    /// The launches: one, or one a batch entry where a window would exceed the device's binding limit.
    pub fn launches(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        for (operand, view) in [self.q, self.k, self.v].into_iter().enumerate() {
            if view.strides[2] != 1 && view.dims[2] != 1 {
                return Err(KernelError::Layout { operand });
            }
        }
        let batch = self.q.dims[0];
        match self.launch(0..batch, caps) {
            Err(KernelError::Binding { .. }) if batch > 1 => (0..batch).map(|b| self.launch(b..b + 1, caps)).collect(),
            other => other.map(|launch| vec![launch]),
        }
    }

    fn launch(&self, range: std::ops::Range<usize>, caps: &DeviceCaps) -> Result<Launch<usize>, KernelError> {
        let (heads, batch) = (self.attrs.heads, range.len());
        let (sq, sk, width) = (self.q.dims[1], self.k.dims[1], self.q.dims[2]);
        let d = width / heads;
        let out = View { offset: 0, dims: self.q.dims.clone(), strides: vec![sq * width, width, 1] };
        let all = [self.q, self.k, self.v, &out];
        let vec = d.is_multiple_of(4)
            && all.iter().all(|v| v.offset.is_multiple_of(4) && v.strides[..2].iter().all(|s| s.is_multiple_of(4)));
        let columns = d.div_ceil(4);
        let fits = |b: &(usize, usize)| {
            block_bytes(*b, columns) <= caps.workgroup_bytes as usize && b.0 * b.1 / 16 <= caps.max_invocations as usize
        };
        // a block that is mostly padding would be slower than a smaller one
        let block = if caps.cpu {
            None
        } else {
            BLOCKS.iter().copied().find(|b| fits(b) && (b.0 <= sq.next_multiple_of(16) || b.0 == 16))
        };
        let key = AttentionKey {
            dtype: self.dtype,
            vec,
            columns,
            block,
            causal: self.attrs.causal,
            mask: self.attrs.mask,
            lengths: self.attrs.lengths,
            lse: self.lse,
        };
        let blocks = sq.div_ceil(block.map_or(DIRECT, |b| b.0));
        let groups = (batch * heads * blocks) as u64;
        let unit = if vec { 4 } else { 1 };
        let mut operands = Vec::new();
        let mut params = vec![groups as u32, heads as u32, sq as u32, sk as u32, d as u32, blocks as u32];
        params.extend([self.attrs.scale.get().to_bits(), 0]);
        let size = self.dtype.size();
        let part = |v: &View| v.slice(0, range.start, batch);
        let mut strided = |position: usize, name: &str, v: &View| -> Result<super::Operand<usize>, KernelError> {
            let v = part(v);
            let (operand, first) = window("attention", position, name, v.offset, v.end(), size, caps)?;
            params.extend([first / unit, v.strides[0] / unit, v.strides[1] / unit, d / unit].map(|x| x as u32));
            Ok(operand)
        };
        let extras = usize::from(self.attrs.mask) + usize::from(self.attrs.lengths);
        operands.push(strided(0, "q", self.q)?);
        operands.push(strided(1, "k", self.k)?);
        operands.push(strided(2, "v", self.v)?);
        let out_operand = strided(3 + extras, "the output", &out)?;
        if let Some(mask) = self.mask {
            let m = part(mask);
            let (operand, first) = window("attention", 3, "the mask", m.offset, m.end(), size, caps)?;
            operands.push(operand);
            params.extend([first, m.strides[0], m.strides[2], m.strides[1], m.strides[3]].map(|x| x as u32));
        }
        let mut flat = |position: usize, name: &str, row: usize| -> Result<super::Operand<usize>, KernelError> {
            let (operand, first) = window("attention", position, name, range.start * row, range.end * row, 4, caps)?;
            params.push(first as u32);
            Ok(operand)
        };
        if self.attrs.lengths {
            operands.push(flat(2 + extras, "lengths", 1)?);
        }
        operands.push(out_operand);
        if self.lse {
            operands.push(flat(4 + extras, "the log-sum-exp", heads * sq)?);
        }
        let seen = if self.attrs.causal && !self.attrs.lengths {
            (0..sq).map(|i| (i + 1 + sk).saturating_sub(sq).min(sk)).sum::<usize>()
        } else {
            sq * sk
        };
        let flops = 4.0 * (batch * heads * d) as f64 * seen as f64;
        let bytes = (batch * width * (2 * sq + 2 * sk) * size) as f64;
        Ok(Launch { key: KernelKey::Attention(key), params, groups, operands, estimate: Estimate { flops, bytes } })
    }
}

/// One key of every form, for tests.
#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for (block, columns) in [(None, 2), (None, 32), (Some((64, 32)), 16), (Some((32, 16)), 3), (Some((16, 8)), 32)] {
        for flags in 0..16 {
            let on = |bit: usize| flags >> bit & 1 == 1;
            let (dtype, vec) = if on(0) { (DType::F16, true) } else { (DType::F32, columns != 3) };
            let key =
                AttentionKey { dtype, vec, columns, block, causal: on(1), mask: on(2), lengths: on(3), lse: on(0) };
            keys.push(KernelKey::Attention(key));
        }
    }
    keys
}
