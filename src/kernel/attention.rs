//! In: q, k and v as views with heads side by side; out: launches of `attention.wgsl`, of `attention_units.wgsl` where
//! matrix units make its products, or of `attention_direct.wgsl` on a CPU that acts as a GPU and where limits are too
//! small for tiles. Knows no other kernel.

use super::attend_units::Shares;
use super::heads::{self, Heads};
use super::philox::{self, Fours};
use super::template::render;
use super::units::Units;
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, View, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::{AttentionAttrs, DType};
use minijinja::context;
use std::ops::Range;

/// All that changes the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionKey {
    /// Stored type of q, k, v, mask and out.
    pub dtype: DType,
    /// q, k, v and out are bound as arrays of vec4.
    pub vec: bool,
    /// Groups of four columns of a head.
    pub columns: usize,
    /// How subgroups share the pairs of queries and keys where matrix units make the products.
    pub units: Option<Shares>,
    /// Queries and keys of a block; `None` is the direct kernel.
    pub block: Option<(usize, usize)>,
    /// Queries of an invocation of the direct kernel.
    pub own: usize,
    /// Keys in a query's future are hidden.
    pub causal: bool,
    /// An additive mask is bound.
    pub mask: bool,
    /// Lengths are bound.
    pub lengths: bool,
    /// Weights are dropped.
    pub dropout: Option<Fours>,
    /// The log-sum-exp is stored.
    pub lse: bool,
}

/// Invocations of a workgroup of the direct kernel.
const DIRECT: usize = 8;

/// Blocks of queries and keys, the preferred first.
const BLOCKS: [(usize, usize); 5] = [(64, 32), (32, 32), (32, 16), (16, 16), (16, 8)];

/// (Subgroups, queries of each, keys at once, keys staged, fetched ahead) on matrix units, the preferred first: f16
/// numbers as they are.
const FORMS: [(usize, usize, usize, usize, bool); 4] =
    [(8, 16, 32, 64, true), (8, 16, 16, 32, true), (4, 16, 32, 32, true), (4, 16, 16, 16, true)];

/// The same for numbers that are split in two.
const SPLIT_FORMS: [(usize, usize, usize, usize, bool); 3] =
    [(8, 16, 16, 32, true), (8, 16, 16, 16, true), (4, 16, 16, 16, true)];

impl AttentionKey {
    /// The file stem.
    pub fn name(&self) -> &'static str {
        match (self.units, self.block) {
            (Some(_), _) => "attention_units",
            (None, Some(_)) => "attention",
            (None, None) => "attention_direct",
        }
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
                reads => ["q", "k", "v"], writes => ["out"], length => "lengths[p.lengths_offset + b]",
                mask => self.mask, lengths => self.lengths, causal => self.causal, lse => self.lse,
                dropout => self.dropout.is_some(), whole => self.dropout == Some(Fours::Whole),
                out_binding => 4 + self.extras(),
                columns => self.columns, own => self.own, threads => self.workgroup_size(), br, bc, tx, nc,
                kv => (self.columns * bc).max(bc * tx * nc),
                ..self.units.map_or_else(|| context! {}, |s| s.context(self.columns))
            },
        )
    }

    fn extras(&self) -> usize {
        usize::from(self.mask) + usize::from(self.lengths) + usize::from(self.dropout.is_some())
    }

    /// How each storage binding is used.
    pub fn bindings(&self) -> Vec<Access> {
        let mut all = vec![Access::Read; 3 + self.extras()];
        all.extend(vec![Access::ReadWrite; 1 + usize::from(self.lse)]);
        all
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let mut names: Vec<String> = "groups heads sq sk d blocks scale zero".split(' ').map(String::from).collect();
        names.extend(["q", "k", "v", "o"].iter().flat_map(|t| heads::strides(t)));
        names.extend(self.mask.then(heads::mask_strides).into_iter().flatten());
        names.extend(self.lengths.then(|| "lengths_offset".into()));
        names.extend(self.lse.then(|| "lse_offset".into()));
        if self.dropout.is_some() {
            names.extend(["entry"].into_iter().chain(philox::PARAMS).map(String::from));
        }
        names
    }

    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> usize {
        match self.units {
            Some(shares) => shares.bytes(self.columns),
            None => self.block.map_or(0, |b| block_bytes(b, self.columns)),
        }
    }

    /// Queries of a workgroup.
    fn rows(&self) -> usize {
        match self.units {
            Some(shares) => shares.own(),
            None => self.block.map_or(DIRECT * self.own, |b| b.0),
        }
    }

    /// Invocations in a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        match self.units {
            Some(shares) => shares.invocations() as u32,
            None => self.block.map_or(DIRECT, |(br, bc)| br * bc / 16) as u32,
        }
    }
}

/// Bytes of workgroup memory that a block takes.
fn block_bytes((br, bc): (usize, usize), columns: usize) -> usize {
    let tx = bc / 4;
    let kv = (columns * bc).max(bc * tx * columns.div_ceil(tx));
    16 * (columns * br + kv + bc * (br / 4) + tx * (br / 4))
}

/// Operands: q, k, v, mask, lengths and counter if any, out, log-sum-exp if it is stored.
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
    /// Made by matrix units where a form for them is good; in multiply-adds without.
    pub units: Option<Units>,
}

impl Attention<'_> {
    /// The launches: one, or one a batch entry where a window would exceed the device's binding limit.
    pub fn launches(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        heads::contiguous([(0, self.q), (1, self.k), (2, self.v)])?;
        heads::by_entries(self.q.dims[0], |entries| self.launch(entries, caps))
    }

    fn launch(&self, entries: Range<usize>, caps: &DeviceCaps) -> Result<Launch<usize>, KernelError> {
        const NAME: &str = "attention";
        let (heads, batch) = (self.attrs.heads, entries.len());
        let (sq, sk, width) = (self.q.dims[1], self.k.dims[1], self.q.dims[2]);
        let d = width / heads;
        let out = heads::dense(&self.q.dims);
        let vec = heads::vectors(d, &[self.q, self.k, self.v, &out]);
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
        let units = self.units.and_then(|units| {
            let forms = if units.split { &SPLIT_FORMS[..] } else { &FORMS[..] };
            Shares::choose(units, forms, [columns, sq], caps, |s| s.bytes(columns))
        });
        let key = AttentionKey {
            dtype: self.dtype,
            vec,
            columns,
            units,
            block: block.filter(|_| units.is_none()),
            own: heads::direct_rows(columns, sq),
            causal: self.attrs.causal,
            mask: self.attrs.mask,
            lengths: self.attrs.lengths,
            dropout: self.attrs.dropout.map(|_| Fours::of(sk)),
            lse: self.lse,
        };
        let blocks = sq.div_ceil(key.rows());
        let groups = (batch * heads * blocks) as u64;
        let rows = Heads { kernel: NAME, caps, entries: entries.clone(), size: self.dtype.size(), vec, d };
        let mut operands = Vec::new();
        let mut params = vec![groups as u32, heads as u32, sq as u32, sk as u32, d as u32, blocks as u32];
        params.extend([self.attrs.scale.get().to_bits(), 0]);
        for (position, what, view) in [(0, "q", self.q), (1, "k", self.k), (2, "v", self.v)] {
            operands.push(rows.rows(position, what, view, &mut params)?);
        }
        let made = self.attrs.inputs();
        let out = rows.rows(made, "the output", &out, &mut params)?;
        if let Some(mask) = self.mask {
            operands.push(rows.mask(3, mask, &mut params)?);
        }
        let mut next = 3 + usize::from(self.attrs.mask);
        if self.attrs.lengths {
            operands.push(rows.flat(next, "lengths", 1, 4, &mut params)?);
            next += 1;
        }
        let lse =
            if self.lse { Some(rows.flat(made + 1, "the log-sum-exp", heads * sq, 4, &mut params)?) } else { None };
        if let Some(dropout) = &self.attrs.dropout {
            operands.push(philox::counter(NAME, next, caps)?);
            philox::within(NAME, "weights of one head", self.q.dims[0] * sq * sk)?;
            params.push(entries.start as u32);
            params.extend(philox::words(dropout));
        }
        operands.push(out);
        operands.extend(lse);
        let flops = 4.0 * (batch * heads * d) as f64 * heads::pairs(&self.attrs, sq, sk) as f64;
        let bytes = (batch * width * (2 * sq + 2 * sk) * self.dtype.size()) as f64;
        Ok(Launch { key: KernelKey::Attention(key), params, groups, operands, estimate: Estimate { flops, bytes } })
    }
}

/// One key of every form, for tests.
#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    let tiled = [(None, 2), (None, 32), (Some((64, 32)), 16), (Some((32, 16)), 3), (Some((16, 8)), 32)];
    let forms = tiled.map(|(block, columns)| (block, columns, None)).into_iter();
    let on_units = super::attend_units::catalogue(&[&FORMS, &SPLIT_FORMS], |s, columns| s.bytes(columns));
    for (i, (block, columns, units)) in forms.chain(on_units.map(|(s, c)| (None, c, Some(s)))).enumerate() {
        let all = (0..16).map(|f| (f, None)).chain([
            (0, Some(Fours::Whole)),
            (3, Some(Fours::Across)),
            (13, Some(Fours::Across)),
            (15, Some(Fours::Whole)),
        ]);
        // a few for each way to share
        for (flags, dropout) in all.filter(|(f, _)| units.is_none() || f % 5 == i % 5) {
            let on = |bit: usize| flags >> bit & 1 == 1;
            let f16 = on(0) && !units.is_some_and(|s| s.units.split);
            let (dtype, vec) = if f16 { (DType::F16, true) } else { (DType::F32, columns != 3) };
            keys.push(KernelKey::Attention(AttentionKey {
                dtype,
                vec,
                columns,
                units,
                block,
                own: if block.is_some() || on(2) { 1 } else { 4 },
                causal: on(1),
                mask: on(2),
                lengths: on(3),
                dropout,
                lse: on(0),
            }));
        }
    }
    keys
}
