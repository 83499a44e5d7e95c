//! In: one node at a time with its types; out: [`Launch`]es, each a [`KernelKey`] with its parameters, operands,
//! size and [`Estimate`]. Knows neither the graph as a whole nor buffers nor wgpu; one kernel does not know another.
//!
//! [`KernelKey`] holds all that changes a kernel's text but where its parameters are, a [`ParamSpace`];
//! [`KernelKey::source`] is a pure function of both. Sizes and strides are runtime parameters; storage buffers are bound
//! from binding 1 on in the order of [`KernelKey::bindings`]. Each kernel is one Rust module and one .wgsl of the same stem.

pub mod adam;
pub mod attend_units;
pub mod attention;
pub mod attention_grad;
pub mod attention_stats;
mod chain_wgsl;
mod choices;
pub mod cross_entropy;
pub mod cross_entropy_grad;
pub mod dropout;
pub mod elementwise;
mod error;
pub mod exponents;
pub mod fill;
pub mod gather;
mod heads;
pub mod linear_stack;
pub mod magnitude;
pub mod matmul;
pub mod norm;
pub mod norm_grad;
pub mod norm_param_grad;
pub mod pack_weights;
mod philox;
pub mod probe;
mod rectangle;
pub mod reduce;
pub mod scatter;
pub mod softmax;
pub mod softmax_grad;
mod split;
pub mod sum_parts;
mod template;
#[cfg(test)]
mod tests;
pub mod units;
mod view;

pub use choices::{Choices, Config, Numbers, Problem};
pub use error::KernelError;
pub use philox::{Draw, Fours};
pub use split::split_rows;
pub use template::fingerprint;

use crate::caps::{DeviceCaps, MatrixUnits};
use crate::graph::DType;
use std::fmt;

/// FLOPs and bytes that a launch cannot do without, from its sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Floating-point operations; a fused multiply-add counts two.
    pub flops: f64,
    /// Bytes of each operand read or written once.
    pub bytes: f64,
}

/// All that changes a kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KernelKey {
    /// adam.wgsl
    Adam(adam::AdamKey),
    /// attention.wgsl or attention_direct.wgsl
    Attention(attention::AttentionKey),
    /// attention_grad.wgsl or attention_grad_direct.wgsl
    AttentionGrad(attention_grad::AttentionGradKey),
    /// attention_stats.wgsl
    AttentionStats(attention_stats::AttentionStatsKey),
    /// cross_entropy.wgsl
    CrossEntropy(cross_entropy::CrossEntropyKey),
    /// cross_entropy_grad.wgsl
    CrossEntropyGrad(cross_entropy_grad::CrossEntropyGradKey),
    /// dropout.wgsl
    Dropout(dropout::DropoutKey),
    /// elementwise.wgsl
    Elementwise(elementwise::ElementwiseKey),
    /// exponents.wgsl
    Exponents(exponents::ExponentsKey),
    /// fill.wgsl
    Fill(fill::FillKey),
    /// gather.wgsl
    Gather(gather::GatherKey),
    /// linear_stack.wgsl or linear_stack_units.wgsl
    LinearStack(linear_stack::LinearStackKey),
    /// magnitude.wgsl
    Magnitude(magnitude::MagnitudeKey),
    /// matmul.wgsl, matmul_direct.wgsl or matmul_units.wgsl
    Matmul(matmul::MatmulKey),
    /// norm.wgsl
    Norm(norm::NormKey),
    /// norm_grad.wgsl
    NormGrad(norm_grad::NormGradKey),
    /// norm_param_grad.wgsl
    NormParamGrad(norm_param_grad::NormParamGradKey),
    /// pack_weights.wgsl
    PackWeights(pack_weights::PackWeightsKey),
    /// probe.wgsl
    Probe(probe::ProbeKey),
    /// reduce.wgsl
    Reduce(reduce::ReduceKey),
    /// scatter.wgsl
    Scatter(scatter::ScatterKey),
    /// softmax.wgsl
    Softmax(softmax::SoftmaxKey),
    /// softmax_grad.wgsl
    SoftmaxGrad(softmax_grad::SoftmaxGradKey),
    /// sum_parts.wgsl
    SumParts(sum_parts::SumPartsKey),
}

impl KernelKey {
    /// The stem of the kernel's WGSL file.
    pub fn name(&self) -> &'static str {
        match self {
            KernelKey::Adam(_) => adam::NAME,
            KernelKey::Attention(key) => key.name(),
            KernelKey::AttentionGrad(key) => key.name(),
            KernelKey::AttentionStats(_) => attention_stats::NAME,
            KernelKey::CrossEntropy(_) => cross_entropy::NAME,
            KernelKey::CrossEntropyGrad(_) => cross_entropy_grad::NAME,
            KernelKey::Dropout(_) => dropout::NAME,
            KernelKey::Elementwise(_) => elementwise::NAME,
            KernelKey::Exponents(_) => exponents::NAME,
            KernelKey::Fill(_) => fill::NAME,
            KernelKey::Gather(_) => gather::NAME,
            KernelKey::LinearStack(key) => key.name(),
            KernelKey::Magnitude(_) => magnitude::NAME,
            KernelKey::Matmul(key) => key.name(),
            KernelKey::Norm(_) => norm::NAME,
            KernelKey::NormGrad(_) => norm_grad::NAME,
            KernelKey::NormParamGrad(_) => norm_param_grad::NAME,
            KernelKey::PackWeights(_) => pack_weights::NAME,
            KernelKey::Probe(_) => probe::NAME,
            KernelKey::Reduce(_) => reduce::NAME,
            KernelKey::Scatter(_) => scatter::NAME,
            KernelKey::Softmax(_) => softmax::NAME,
            KernelKey::SoftmaxGrad(_) => softmax_grad::NAME,
            KernelKey::SumParts(_) => sum_parts::NAME,
        }
    }

    /// The kernel as WGSL that reads its parameters there.
    pub fn source(&self, params: ParamSpace) -> String {
        match self {
            KernelKey::Adam(key) => key.source(params),
            KernelKey::Attention(key) => key.source(params),
            KernelKey::AttentionGrad(key) => key.source(params),
            KernelKey::AttentionStats(key) => key.source(params),
            KernelKey::CrossEntropy(key) => key.source(params),
            KernelKey::CrossEntropyGrad(key) => key.source(params),
            KernelKey::Dropout(key) => key.source(params),
            KernelKey::Elementwise(key) => key.source(params),
            KernelKey::Exponents(key) => key.source(params),
            KernelKey::Fill(key) => key.source(params),
            KernelKey::Gather(key) => key.source(params),
            KernelKey::LinearStack(key) => key.source(params),
            KernelKey::Magnitude(key) => key.source(params),
            KernelKey::Matmul(key) => key.source(params),
            KernelKey::Norm(key) => key.source(params),
            KernelKey::NormGrad(key) => key.source(params),
            KernelKey::NormParamGrad(key) => key.source(params),
            KernelKey::PackWeights(key) => key.source(params),
            KernelKey::Probe(key) => key.source(params),
            KernelKey::Reduce(key) => key.source(params),
            KernelKey::Scatter(key) => key.source(params),
            KernelKey::Softmax(key) => key.source(params),
            KernelKey::SoftmaxGrad(key) => key.source(params),
            KernelKey::SumParts(key) => key.source(params),
        }
    }

    /// The storage bindings, from binding 1 on.
    pub fn bindings(&self) -> Vec<Access> {
        match self {
            KernelKey::Adam(key) => key.bindings(),
            KernelKey::Attention(key) => key.bindings(),
            KernelKey::AttentionGrad(key) => key.bindings(),
            KernelKey::AttentionStats(key) => key.bindings(),
            KernelKey::CrossEntropy(key) => key.bindings(),
            KernelKey::CrossEntropyGrad(key) => key.bindings(),
            KernelKey::Dropout(key) => key.bindings(),
            KernelKey::Elementwise(key) => key.bindings(),
            KernelKey::Exponents(key) => key.bindings(),
            KernelKey::Fill(key) => key.bindings(),
            KernelKey::Gather(key) => key.bindings(),
            KernelKey::LinearStack(key) => key.bindings(),
            KernelKey::Magnitude(key) => key.bindings(),
            KernelKey::Matmul(key) => key.bindings(),
            KernelKey::Norm(key) => key.bindings(),
            KernelKey::NormGrad(key) => key.bindings(),
            KernelKey::NormParamGrad(key) => key.bindings(),
            KernelKey::PackWeights(key) => key.bindings(),
            KernelKey::Probe(key) => key.bindings(),
            KernelKey::Reduce(key) => key.bindings(),
            KernelKey::Scatter(key) => key.bindings(),
            KernelKey::Softmax(key) => key.bindings(),
            KernelKey::SoftmaxGrad(key) => key.bindings(),
            KernelKey::SumParts(key) => key.bindings(),
        }
    }

    /// Names of the words of [`Launch::params`].
    pub fn params(&self) -> Vec<String> {
        let fixed = |names: &[&str]| names.iter().map(|n| n.to_string()).collect();
        match self {
            KernelKey::Adam(_) => fixed(adam::PARAMS),
            KernelKey::Attention(key) => key.params(),
            KernelKey::AttentionGrad(key) => key.params(),
            KernelKey::AttentionStats(key) => key.params(),
            KernelKey::CrossEntropy(_) => fixed(cross_entropy::PARAMS),
            KernelKey::CrossEntropyGrad(_) => fixed(cross_entropy_grad::PARAMS),
            KernelKey::Dropout(key) => key.params(),
            KernelKey::Elementwise(key) => key.params(),
            KernelKey::Exponents(key) => key.params(),
            KernelKey::Fill(_) => fixed(fill::PARAMS),
            KernelKey::Gather(_) => fixed(gather::PARAMS),
            KernelKey::LinearStack(key) => key.params(),
            KernelKey::Magnitude(key) => key.params(),
            KernelKey::Matmul(key) => key.params(),
            KernelKey::Norm(_) => fixed(norm::PARAMS),
            KernelKey::NormGrad(_) => fixed(norm_grad::PARAMS),
            KernelKey::NormParamGrad(_) => fixed(norm_param_grad::PARAMS),
            KernelKey::PackWeights(_) => fixed(pack_weights::PARAMS),
            KernelKey::Probe(_) => fixed(probe::PARAMS),
            KernelKey::Reduce(_) => fixed(reduce::PARAMS),
            KernelKey::Scatter(_) => fixed(scatter::PARAMS),
            KernelKey::Softmax(_) => fixed(softmax::PARAMS),
            KernelKey::SoftmaxGrad(_) => fixed(softmax_grad::PARAMS),
            KernelKey::SumParts(key) => key.params(),
        }
    }

    /// Where its parameters are on a device: in immediates if all of them fit.
    pub fn param_space(&self, caps: &DeviceCaps) -> ParamSpace {
        if self.params().len() * 4 <= caps.immediate_bytes as usize {
            ParamSpace::Immediate
        } else {
            ParamSpace::Uniform
        }
    }

    /// Bytes of workgroup memory that the kernel was chosen for; 0 for kernels within [`DeviceCaps::PORTABLE`]'s.
    ///
    /// [`DeviceCaps::PORTABLE`]: crate::caps::DeviceCaps::PORTABLE
    pub fn workgroup_bytes(&self) -> usize {
        match self {
            KernelKey::Attention(key) => key.workgroup_bytes(),
            KernelKey::AttentionGrad(key) => key.workgroup_bytes(),
            KernelKey::LinearStack(key) => key.workgroup_bytes(),
            KernelKey::Matmul(key) => key.workgroup_bytes(),
            KernelKey::Adam(_)
            | KernelKey::AttentionStats(_)
            | KernelKey::CrossEntropy(_)
            | KernelKey::CrossEntropyGrad(_)
            | KernelKey::Dropout(_)
            | KernelKey::Elementwise(_)
            | KernelKey::Exponents(_)
            | KernelKey::Fill(_)
            | KernelKey::Gather(_)
            | KernelKey::Magnitude(_)
            | KernelKey::Norm(_)
            | KernelKey::NormGrad(_)
            | KernelKey::NormParamGrad(_)
            | KernelKey::PackWeights(_)
            | KernelKey::Probe(_)
            | KernelKey::Reduce(_)
            | KernelKey::Scatter(_)
            | KernelKey::Softmax(_)
            | KernelKey::SoftmaxGrad(_)
            | KernelKey::SumParts(_) => 0,
        }
    }

    /// The matrix units that it is written for.
    pub fn units(&self) -> Option<MatrixUnits> {
        match self {
            KernelKey::Attention(key) => key.units.map(|s| s.units.units),
            KernelKey::AttentionGrad(key) => key.units.map(|s| s.units.units),
            KernelKey::LinearStack(key) => key.units(),
            KernelKey::Matmul(key) => key.units.map(|u| u.units),
            _ => None,
        }
    }

    /// Invocations of a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        match self {
            KernelKey::Adam(key) => key.size,
            KernelKey::Attention(key) => key.workgroup_size(),
            KernelKey::AttentionGrad(key) => key.workgroup_size(),
            KernelKey::AttentionStats(key) => key.size,
            KernelKey::CrossEntropy(key) => key.size,
            KernelKey::CrossEntropyGrad(key) => key.size,
            KernelKey::Dropout(key) => key.size,
            KernelKey::Elementwise(key) => key.workgroup_size(),
            KernelKey::Exponents(_) => exponents::SIZE,
            KernelKey::Fill(key) => key.size,
            KernelKey::Gather(key) => key.size,
            KernelKey::LinearStack(key) => key.workgroup_size(),
            KernelKey::Magnitude(key) => key.size,
            KernelKey::Matmul(key) => key.workgroup_size(),
            KernelKey::Norm(key) => key.size,
            KernelKey::NormGrad(key) => key.size,
            KernelKey::NormParamGrad(key) => key.workgroup_size(),
            KernelKey::PackWeights(_) => pack_weights::SIZE,
            KernelKey::Probe(key) => key.size,
            KernelKey::Reduce(key) => key.size,
            KernelKey::Scatter(key) => key.workgroup_size(),
            KernelKey::Softmax(key) => key.size,
            KernelKey::SoftmaxGrad(key) => key.size,
            KernelKey::SumParts(key) => key.workgroup_size(),
        }
    }
}

/// Where a kernel reads its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamSpace {
    /// A range of a uniform buffer at binding 0, which every device has.
    Uniform,
    /// Immediates: words in the command buffer itself, so that a dispatch has no buffer for them that is bound and
    /// tracked.
    Immediate,
}

/// How a kernel touches a storage binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read only.
    Read,
    /// Written, and read where an operand is updated in place.
    ReadWrite,
}

/// A window of a tensor that a launch binds. `T` names the tensor: an operand's position for a kernel, a tensor's
/// index for select and plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand<T> {
    /// Which tensor.
    pub tensor: T,
    /// First byte of the window; a multiple of the device's alignment.
    pub offset: u64,
    /// Bytes in the window.
    pub bytes: u64,
}

/// One dispatch before it has buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch<T> {
    /// The kernel.
    pub key: KernelKey,
    /// Words in the order of the kernel's `Params`.
    pub params: Vec<u32>,
    /// Number of workgroups, folded to two dimensions when recorded; kernels read a linear index.
    pub groups: u64,
    /// What is bound from binding 1 on.
    pub operands: Vec<Operand<T>>,
    /// Its cost.
    pub estimate: Estimate,
}

impl<T> Launch<T> {
    /// The same launch over tensors that are named otherwise.
    pub fn map<U>(self, name: impl Fn(T) -> U) -> Launch<U> {
        let operands =
            self.operands.into_iter().map(|o| Operand { tensor: name(o.tensor), offset: o.offset, bytes: o.bytes });
        Launch {
            operands: operands.collect(),
            key: self.key,
            params: self.params,
            groups: self.groups,
            estimate: self.estimate,
        }
    }
}

/// A strided look at a dense tensor, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// First element.
    pub offset: usize,
    /// Sizes.
    pub dims: Vec<usize>,
    /// Distance between neighbours along each dimension; 0 repeats.
    pub strides: Vec<usize>,
}

/// WGSL's name of a stored element type; a Bool is stored as u32.
pub fn wgsl_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::I32 => "i32",
        DType::U32 | DType::Bool => "u32",
        DType::BF16 => unreachable!("select refuses bf16"),
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} GFLOP, {:.3} MB", self.flops / 1e9, self.bytes / 1e6)
    }
}
