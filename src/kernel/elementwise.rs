//! In: a chain over strided views; out: launches of `elementwise.wgsl`, which also casts and copies. Knows no other
//! kernel.

use super::chain_wgsl::{Printer, vector};
use super::split::furthest;
use super::template::render;
use super::view::{coalesce, window};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, View, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::{Chain, DType, Step};
use minijinja::context;

/// The file stem.
pub const NAME: &str = "elementwise";

const WORKGROUP: u32 = 64;

/// What one input looks like to the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Its stored type.
    pub dtype: DType,
    /// With four elements an invocation: whether the innermost stride is 0, so that one element serves all four.
    pub splat: bool,
}

/// All that changes the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElementwiseKey {
    /// What is computed.
    pub chain: Chain,
    /// Of what.
    pub inputs: Vec<Source>,
    /// The stored type of the result.
    pub out: DType,
    /// F32 for floats, else the integer type that is computed in.
    pub compute: DType,
    /// Number of dimensions after merging.
    pub rank: usize,
    /// Elements an invocation makes: 1 or 4.
    pub width: usize,
    /// The input that is overwritten by the result.
    pub in_place: Option<usize>,
}

impl ElementwiseKey {
    /// The kernel as WGSL.
    pub fn source(&self, params: ParamSpace) -> String {
        let printer = Printer { compute: self.compute, width: self.width, zero: "p.zero" };
        let inputs: Vec<_> = self.inputs.iter().enumerate().map(|(k, s)| self.input(k, s, &printer)).collect();
        let stored = |d: DType| vector(wgsl_type(d), self.width);
        let f16 =
            self.out == DType::F16 || self.inputs.iter().any(|i| i.dtype == DType::F16) || self.chain.rounds_f16();
        render(
            NAME,
            params,
            context! {
                f16, inputs, rank => self.rank, width => self.width, workgroup => WORKGROUP, T => printer.ty(),
                float => self.compute == DType::F32, signed => self.compute == DType::I32,
                shift => vector("u32", self.width),
                out_binding => self.bindings().len(), out_storage => stored(self.out),
                steps => printer.steps(&self.chain), store => self.store(&printer),
            },
        )
    }

    fn input(&self, k: usize, source: &Source, printer: &Printer) -> minijinja::Value {
        let in_place = self.in_place == Some(k);
        let binding = 1 + (0..k).filter(|i| self.in_place != Some(*i)).count();
        let storage_width = if source.splat { 1 } else { self.width };
        let array = if in_place { "out".to_owned() } else { format!("in{k}") };
        let loaded = format!("{array}[at{k}]");
        let load = if self.chain.is_condition(k) {
            let zero = if storage_width == 4 { "vec4<u32>(0u)" } else { "0u" };
            let truth = format!("({loaded} != {zero})");
            if self.width == 4 && source.splat { format!("vec4<bool>{truth}") } else { truth }
        } else {
            let scalar = wgsl_type(self.compute);
            let same_bits = |d: DType| d.is_integer() && self.compute.is_integer() && d != self.compute;
            let inner = vector(scalar, storage_width);
            let value = if same_bits(source.dtype) {
                format!("bitcast<{inner}>({loaded})")
            } else {
                format!("{inner}({loaded})")
            };
            if self.width == 4 && source.splat { format!("{}({value})", printer.ty()) } else { value }
        };
        context! { in_place, binding, index => k, storage => vector(wgsl_type(source.dtype), storage_width), load }
    }

    fn store(&self, printer: &Printer) -> String {
        let result = super::chain_wgsl::name(self.chain.result());
        let ty = vector(wgsl_type(self.out), self.width);
        let out = self.out;
        let u = vector("u32", self.width);
        match out {
            DType::Bool if matches!(self.chain.steps.last(), Some(Step::Compare(..))) => {
                format!("select({u}(0u), {u}(1u), {result})")
            }
            DType::Bool => {
                // not !=, which may be false of NaN
                format!("select({u}(1u), {u}(0u), {result} == {}(0))", printer.ty())
            }
            _ if out == self.compute => result,
            _ if out.is_integer() && self.compute.is_integer() => format!("bitcast<{ty}>({result})"),
            DType::I32 | DType::U32 => {
                // WGSL's conversions end at the largest number that is a float too, and say nothing of NaN
                let (most, past) = match out {
                    DType::I32 => ("2147483647", "2147483648.0"),
                    _ => ("4294967295u", "4294967296.0"),
                };
                let whole = format!("select({ty}({result}), {ty}({most}), {result} >= {}({past}))", printer.ty());
                format!("select({whole}, {ty}(0), k_nan({result}))")
            }
            _ => format!("{ty}({result})"),
        }
    }

    /// How each storage binding is used.
    pub fn bindings(&self) -> Vec<Access> {
        let reads = self.inputs.len() - usize::from(self.in_place.is_some());
        let mut all = vec![Access::Read; reads];
        all.push(Access::ReadWrite);
        all
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let mut names: Vec<String> = ["groups", "count", "zero", "out_offset"].map(String::from).to_vec();
        for d in 0..self.rank {
            names.extend([format!("dim{d}"), format!("out_stride{d}")]);
        }
        for k in 0..self.inputs.len() {
            names.push(format!("offset{k}"));
            names.extend((0..self.rank).map(|d| format!("stride{k}_{d}")));
        }
        names
    }

    /// Invocations in a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        WORKGROUP
    }
}

/// A chain over views that all have the output's sizes. Operands: the inputs, then the output.
pub struct Elementwise<'a> {
    /// What is computed; empty steps copy input 0.
    pub chain: &'a Chain,
    /// Type and view of each input, broadcast to the output's sizes.
    pub inputs: &'a [(DType, View)],
    /// Type and view of the output.
    pub out: (DType, &'a View),
    /// F32 for floats, else the integer type that is computed in.
    pub compute: DType,
    /// The input that is overwritten by the result; its view equals the output's.
    pub in_place: Option<usize>,
}

impl Elementwise<'_> {
    /// The launches: one, or several where a window would exceed the device's binding limit.
    pub fn launches(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        let (out_dtype, out) = self.out;
        let mut lists: Vec<&[usize]> = self.inputs.iter().map(|(_, v)| v.strides.as_slice()).collect();
        lists.push(&out.strides);
        let (dims, strides) = coalesce(&out.dims, &lists);
        let mut offsets: Vec<usize> = self.inputs.iter().map(|(_, v)| v.offset).collect();
        offsets.push(out.offset);
        let width = if fours(&dims, &strides, &offsets) { 4 } else { 1 };
        let last = dims.len() - 1;
        let inputs = self.inputs.iter().zip(&strides);
        let key = ElementwiseKey {
            chain: self.chain.clone(),
            inputs: inputs.map(|((d, _), s)| Source { dtype: *d, splat: width == 4 && s[last] == 0 }).collect(),
            out: out_dtype,
            compute: self.compute,
            rank: dims.len(),
            width,
            in_place: self.in_place,
        };
        let mut sizes: Vec<usize> = self.inputs.iter().map(|(d, _)| d.size()).collect();
        sizes.push(out_dtype.size());
        let mut launches = Vec::new();
        split(&Space { dims, strides, sizes }, &offsets, &key, caps, &mut launches)?;
        Ok(launches)
    }
}

/// Sizes, then per operand its strides and element size.
struct Space {
    dims: Vec<usize>,
    strides: Vec<Vec<usize>>,
    sizes: Vec<usize>,
}

/// Whether four neighbours along the last dimension can be one access of every operand.
fn fours(dims: &[usize], strides: &[Vec<usize>], offsets: &[usize]) -> bool {
    let last = dims.len() - 1;
    let output = strides.len() - 1;
    dims[last].is_multiple_of(4)
        && strides[output][last] == 1
        && strides.iter().zip(offsets).all(|(s, o)| match s[last] {
            0 => true,
            1 => o.is_multiple_of(4) && s[..last].iter().all(|x| x.is_multiple_of(4)),
            _ => false,
        })
}

/// Emits one launch if every window fits, else halves the dimension along which the window that does not fit reaches
/// furthest, or the outermost where that is not the reason.
fn split(
    space: &Space,
    offsets: &[usize],
    key: &ElementwiseKey,
    caps: &DeviceCaps,
    launches: &mut Vec<Launch<usize>>,
) -> Result<(), KernelError> {
    match launch(space, offsets, key, caps) {
        Ok(launch) => {
            launches.push(launch);
            Ok(())
        }
        Err(error) => {
            // whole groups of four stay together
            let last = space.dims.len() - 1;
            let least = |d: usize| if d == last && key.width == 4 { 8 } else { 2 };
            let mut large = (0..=last).filter(|d| space.dims[*d] >= least(*d));
            let dim = match error {
                KernelError::Binding { operand, .. } => {
                    furthest(large.map(|d| (space.dims[d], space.strides[operand][d], d))).map(|(_, d)| d)
                }
                _ => large.next(),
            };
            let Some(d) = dim else { return Err(error) };
            let half = space.dims[d] / 2 / 4 * 4;
            let half = if half == 0 { space.dims[d] / 2 } else { half };
            for (start, len) in [(0, half), (half, space.dims[d] - half)] {
                let mut dims = space.dims.clone();
                dims[d] = len;
                let offsets: Vec<usize> = offsets.iter().zip(&space.strides).map(|(o, s)| o + start * s[d]).collect();
                let part = Space { dims, strides: space.strides.clone(), sizes: space.sizes.clone() };
                split(&part, &offsets, key, caps, launches)?;
            }
            Ok(())
        }
    }
}

fn launch(
    space: &Space,
    offsets: &[usize],
    key: &ElementwiseKey,
    caps: &DeviceCaps,
) -> Result<Launch<usize>, KernelError> {
    let (n_inputs, last, w) = (key.inputs.len(), space.dims.len() - 1, key.width);
    let count = space.dims.iter().product::<usize>() / w;
    let mut operands = Vec::new();
    let mut firsts = Vec::new();
    for (k, strides) in space.strides.iter().enumerate() {
        let view = View { offset: offsets[k], dims: space.dims.clone(), strides: strides.clone() };
        let what = if k == n_inputs { "the output".to_owned() } else { format!("input {k}") };
        let (operand, first) = window(NAME, k, &what, view.offset, view.end(), space.sizes[k], caps)?;
        if key.in_place != Some(k) {
            operands.push(operand);
        }
        firsts.push(first);
    }
    // strides and offsets count vec4s where the operand is an array of them
    let unit = |k: usize| if w == 4 && space.strides[k][last] == 1 { 4 } else { 1 };
    let stride = |k: usize, d: usize| {
        if d == last {
            space.strides[k][d].min(if unit(k) == 4 { 1 } else { usize::MAX })
        } else {
            space.strides[k][d] / unit(k)
        }
    };
    let groups = (count as u64).div_ceil(u64::from(WORKGROUP));
    let mut params = vec![groups as u32, count as u32, 0, (firsts[n_inputs] / unit(n_inputs)) as u32];
    for d in 0..=last {
        let dim = if d == last { space.dims[d] / w } else { space.dims[d] };
        params.extend([dim as u32, stride(n_inputs, d) as u32]);
    }
    for (k, first) in firsts.iter().enumerate().take(n_inputs) {
        params.push((first / unit(k)) as u32);
        params.extend((0..=last).map(|d| stride(k, d) as u32));
    }
    let elements = (count * w) as f64;
    let read: f64 = (0..n_inputs).map(|k| distinct(space, k) * space.sizes[k] as f64).sum();
    let flops = key.chain.steps.iter().filter(|s| !matches!(s, Step::Const(_))).count() as f64 * elements;
    let estimate = Estimate { flops, bytes: read + elements * space.sizes[n_inputs] as f64 };
    Ok(Launch { key: KernelKey::Elementwise(key.clone()), params, groups, operands, estimate })
}

/// Elements of an operand that are read: repeated ones count once.
fn distinct(space: &Space, k: usize) -> f64 {
    space.dims.iter().zip(&space.strides[k]).filter(|(_, s)| **s != 0).map(|(d, _)| *d as f64).product()
}

/// One key of every form, for tests.
#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    use crate::graph::{Binary, Comparison, Ref, Unary};
    let x = Ref::Input(0);
    let mut steps: Vec<Step> =
        [0.5, f32::NEG_INFINITY, f32::NAN, 1e-40, -0.0, f32::MIN].map(|c| Step::Const(c.into())).to_vec();
    let unary = [
        Unary::Scale(f32::INFINITY.into()),
        Unary::Relu,
        Unary::GeluErf,
        Unary::GeluTanh,
        Unary::Silu,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Exp,
        Unary::Log,
        Unary::Sqrt,
        Unary::Rsqrt,
        Unary::Neg,
        Unary::NormalCdf,
    ];
    steps.extend(unary.map(|u| Step::Unary(u, x)));
    let binary = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Min, Binary::Max];
    let all = binary.into_iter().chain([Binary::Pow]);
    steps.extend(all.clone().enumerate().map(|(i, o)| Step::Binary(o, Ref::Step(i), Ref::Input(1))));
    steps.push(Step::Select(Ref::Input(2), x, Ref::Step(0)));
    for (i, c) in [Comparison::Less, Comparison::LessEqual, Comparison::Equal].into_iter().enumerate() {
        let comparison = Ref::Step(steps.len());
        steps.push(Step::Compare(c, Ref::Step(i), Ref::Input(1)));
        steps.push(Step::Select(comparison, x, Ref::Step(6)));
    }
    let floats = Chain { arity: 3, steps };
    let comparison = Chain::of(2, Step::Compare(Comparison::LessEqual, x, Ref::Input(1)));
    let integers = Chain { arity: 2, steps: all.clone().map(|o| Step::Binary(o, x, Ref::Input(1))).collect() };
    let mut keys = Vec::new();
    for width in [1, 4] {
        for rank in 1..4 {
            for in_place in [None, Some(0)] {
                let source = |dtype, splat: bool| Source { dtype, splat: splat && width == 4 };
                for dtype in [DType::F32, DType::F16] {
                    let inputs = vec![source(dtype, false), source(dtype, true), source(DType::Bool, rank == 2)];
                    keys.push(ElementwiseKey {
                        chain: floats.clone(),
                        inputs,
                        out: dtype,
                        compute: DType::F32,
                        rank,
                        width,
                        in_place,
                    });
                }
                for dtype in [DType::I32, DType::U32] {
                    let inputs = vec![source(dtype, false), source(dtype, true)];
                    keys.push(ElementwiseKey {
                        chain: integers.clone(),
                        inputs,
                        out: dtype,
                        compute: dtype,
                        rank,
                        width,
                        in_place,
                    });
                }
            }
            for dtype in [DType::F32, DType::F16, DType::I32, DType::U32] {
                keys.push(ElementwiseKey {
                    chain: comparison.clone(),
                    inputs: vec![Source { dtype, splat: false }, Source { dtype, splat: width == 4 }],
                    out: DType::Bool,
                    compute: if dtype.is_float() { DType::F32 } else { dtype },
                    rank,
                    width,
                    in_place: None,
                });
            }
            let types = [DType::F32, DType::F16, DType::I32, DType::U32, DType::Bool];
            for (from, out) in types.iter().flat_map(|a| types.iter().map(|b| (*a, *b))) {
                let compute = if out.is_float() || from.is_float() { DType::F32 } else { DType::I32 };
                let inputs = vec![Source { dtype: from, splat: false }];
                keys.push(ElementwiseKey {
                    chain: Chain::identity(),
                    inputs,
                    out,
                    compute,
                    rank,
                    width,
                    in_place: None,
                });
            }
        }
    }
    keys.into_iter().map(KernelKey::Elementwise).collect()
}
