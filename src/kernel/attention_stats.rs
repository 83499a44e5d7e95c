//! In: an attention's result and its gradient as views; out: launches of `attention_stats.wgsl`, whose result is what
//! the gradient's kernels read beside q, k and v. Knows no other kernel.

use super::heads::{self, Heads};
use super::template::render;
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, View, philox, split, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::{AttentionAttrs, DType};
use minijinja::context;
use std::ops::Range;

pub(super) const NAME: &str = "attention_stats";

/// What changes attention_stats.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionStatsKey {
    /// Stored type of out and dout.
    pub dtype: DType,
    /// They are bound as arrays of vec4.
    pub vec: bool,
    /// Lengths are bound.
    pub lengths: bool,
    /// A counter is bound.
    pub dropout: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl AttentionStatsKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let scalar = wgsl_type(self.dtype);
        let writes: [&str; 0] = [];
        let values = context! {
            f16 => self.dtype == DType::F16, scalar, vec => self.vec, words => false, size => self.size,
            storage => super::chain_wgsl::vector(scalar, if self.vec { 4 } else { 1 }),
            reads => ["out", "dout"], writes, lengths => self.lengths, dropout => self.dropout,
            stats_binding => self.bindings().len(),
        };
        render(NAME, params, values)
    }

    /// out, dout, log-sum-exp, lengths and counter if any, stats.
    pub fn bindings(&self) -> Vec<Access> {
        let reads = 3 + usize::from(self.lengths) + usize::from(self.dropout);
        [vec![Access::Read; reads], vec![Access::ReadWrite]].concat()
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let mut names: Vec<String> = "groups count heads sq sk d".split(' ').map(String::from).collect();
        names.extend(["out", "dout"].iter().flat_map(|t| heads::strides(t)));
        names.push("lse_offset".into());
        names.extend(self.lengths.then(|| "lengths_offset".into()));
        names.extend(["stats_offset", "stats_batch"].map(String::from));
        names
    }
}

/// Operands: the attention's inputs, out, log-sum-exp, dout, dq, dk, dv, stats; of the inputs only lengths and counter
/// are bound, of the gradients none.
pub struct AttentionStats<'a> {
    /// Of the attention.
    pub attrs: AttentionAttrs,
    /// Stored type.
    pub dtype: DType,
    /// (B, Sq, H·D), neighbours in the width contiguous.
    pub out: &'a View,
    /// (B, Sq, H·D).
    pub dout: &'a View,
    /// Keys.
    pub sk: usize,
}

impl AttentionStats<'_> {
    /// Bytes of the result.
    pub fn bytes(&self) -> usize {
        8 * self.out.dims[0] * heads::stats_entry(self.attrs.heads, self.out.dims[1])
    }

    /// The launches: one, or one a batch entry where a window would exceed the device's binding limit.
    pub fn launches(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        split::float(NAME, self.dtype, caps)?;
        let n = self.attrs.inputs();
        heads::contiguous([(n, self.out), (n + 2, self.dout)])?;
        heads::by_entries(self.out.dims[0], |entries| self.launch(entries, caps))
    }

    fn launch(&self, entries: Range<usize>, caps: &DeviceCaps) -> Result<Launch<usize>, KernelError> {
        let (n, heads) = (self.attrs.inputs(), self.attrs.heads);
        let (sq, width) = (self.out.dims[1], self.out.dims[2]);
        let d = width / heads;
        let vec = heads::vectors(d, &[self.out, self.dout]);
        let count = entries.len() * heads * sq;
        let size = split::workgroup(NAME, count, 0, caps)?;
        let groups = count.div_ceil(size as usize);
        let (lengths, dropout) = (self.attrs.lengths, self.attrs.dropout.is_some());
        let key = AttentionStatsKey { dtype: self.dtype, vec, lengths, dropout, size };
        let sizes =
            [("groups", groups), ("rows", count), ("heads", heads), ("queries", sq), ("keys", self.sk), ("size", d)];
        let mut params = split::sizes(NAME, sizes)?;
        let rows = Heads { kernel: NAME, caps, entries, size: self.dtype.size(), vec, d };
        let mut operands = vec![
            rows.rows(n, "the output", self.out, &mut params)?,
            rows.rows(n + 2, "dout", self.dout, &mut params)?,
            rows.flat(n + 1, "the log-sum-exp", heads * sq, 4, &mut params)?,
        ];
        if lengths {
            operands.push(rows.flat(3 + usize::from(self.attrs.mask), "lengths", 1, 4, &mut params)?);
        }
        if dropout {
            operands.push(philox::counter(NAME, n - 1, caps)?);
        }
        let entry = heads::stats_entry(heads, sq);
        operands.push(rows.flat(n + 6, "statistics of rows", entry, 8, &mut params)?);
        params.push(split::word(NAME, "statistics of a batch entry", entry)?);
        let elements = (count * d) as f64;
        let bytes = 2.0 * elements * self.dtype.size() as f64 + 12.0 * count as f64;
        let estimate = Estimate { flops: 2.0 * elements, bytes };
        Ok(Launch { key: KernelKey::AttentionStats(key), params, groups: groups as u64, operands, estimate })
    }
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for (dtype, vec) in [(DType::F32, true), (DType::F32, false), (DType::F16, true), (DType::F16, false)] {
        for (lengths, dropout) in [(false, false), (false, true), (true, false), (true, true)] {
            let size = if vec { 256 } else { 64 };
            keys.push(KernelKey::AttentionStats(AttentionStatsKey { dtype, vec, lengths, dropout, size }));
        }
    }
    keys
}
