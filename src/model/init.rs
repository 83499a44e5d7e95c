//! In: parameters' names and shapes; out: fresh values for them, as PyTorch or He draws them. Knows layouts, not models.

use super::{ModelError, ParamSource};
use crate::graph::{DType, ParamLayout, Shape, TensorType};
use crate::tensor::Tensor;
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How linear layers are drawn. In both, embeddings are N(0, 1) and norms begin with weight 1 and bias 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Init {
    /// PyTorch's `nn.Linear`: weight and bias uniform in ±1/√fan_in.
    Default,
    /// He's: weight N(0, √(2/fan_in)), bias 0, so that a deep ReLU network keeps its scale (He et al. 2015, eq. 10).
    He,
}

/// How one parameter is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    Constant(f32),
    /// In [−bound, bound).
    Uniform(f32),
    /// With mean 0 and this standard deviation; |z| is below 5.77 deviations.
    Normal(f32),
}

/// Draws every parameter of a layout, in its storage's type and under its own name.
///
/// What a parameter is follows from name and shape: `*embedding_table.weight` (V, E) is an embedding; `weight` and
/// `bias` (E) of a module named `ln` with or without a number are a norm's; any other `weight` (out, in) is a
/// linear layer's, and a `bias` (out) belongs to the weight beside it, whose fan-in it shares. Another parameter is an
/// error. Each draws from a ChaCha8 stream of its own, picked by a hash of its name, so that values depend on neither
/// the order nor the presence of others, nor on packing.
pub fn init(layout: &ParamLayout, kind: Init, seed: u64) -> Result<BTreeMap<String, Tensor>, ModelError> {
    let drawn = Drawn::new(layout, kind, seed)?;
    let jobs: Vec<_> = drawn.parameters.iter().map(|(name, (ty, fill))| (name.as_str(), ty, *fill)).collect();
    Ok(draw_all(&jobs, seed))
}

/// The parameters that [`init`] draws, each when it is asked for: a model that no memory holds takes none before its
/// buffers are refused.
pub struct Drawn {
    parameters: BTreeMap<String, (TensorType, Fill)>,
    seed: u64,
}

impl Drawn {
    /// Of a layout.
    ///
    /// # Errors
    /// See [`init`].
    pub fn new(layout: &ParamLayout, kind: Init, seed: u64) -> Result<Drawn, ModelError> {
        let typed = layout.parameters().map(|(p, dtype)| (p.name.as_str(), TensorType::new(dtype, p.shape.clone())));
        let types: BTreeMap<&str, TensorType> = typed.collect();
        let shapes: BTreeMap<&str, &Shape> = types.iter().map(|(name, ty)| (*name, &ty.shape)).collect();
        let mut parameters = BTreeMap::new();
        for (&name, ty) in &types {
            if !matches!(ty.dtype, DType::F32 | DType::F16) {
                return Err(ModelError::DType { got: ty.dtype });
            }
            parameters.insert(name.to_owned(), (ty.clone(), fill_of(name, &shapes, kind)?));
        }
        Ok(Drawn { parameters, seed })
    }
}

impl ParamSource for Drawn {
    fn get(&self, name: &str) -> Option<Cow<'_, Tensor>> {
        let (ty, fill) = self.parameters.get(name)?;
        Some(Cow::Owned(draw(name, ty, *fill, self.seed)))
    }

    fn ty(&self, name: &str) -> Option<TensorType> {
        self.parameters.get(name).map(|(ty, _)| ty.clone())
    }
}

fn fill_of(name: &str, shapes: &BTreeMap<&str, &Shape>, kind: Init) -> Result<Fill, ModelError> {
    let shape = shapes[name];
    let unknown = || ModelError::Init { name: name.to_owned(), shape: shape.clone() };
    let (module, field) = name.rsplit_once('.').ok_or_else(unknown)?;
    let layer = module.rsplit('.').next().unwrap_or(module);
    let is_norm = layer.strip_prefix("ln").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    Ok(match (field, shape.dims()) {
        ("weight", [_, _]) if layer.ends_with("embedding_table") => Fill::Normal(1.0),
        ("weight", [_]) if is_norm => Fill::Constant(1.0),
        ("bias", [_]) if is_norm => Fill::Constant(0.0),
        ("weight", &[_, fan_in]) => match kind {
            Init::Default => Fill::Uniform((fan_in as f64).powf(-0.5) as f32),
            Init::He => Fill::Normal((2.0 / fan_in as f64).sqrt() as f32),
        },
        ("bias", &[outputs]) => match shapes.get(format!("{module}.weight").as_str()).map(|s| s.dims()) {
            Some(&[rows, fan_in]) if rows == outputs => match kind {
                Init::Default => Fill::Uniform((fan_in as f64).powf(-0.5) as f32),
                Init::He => Fill::Constant(0.0),
            },
            _ => return Err(unknown()),
        },
        _ => return Err(unknown()),
    })
}

/// Draws on all cores, parameter by parameter.
fn draw_all(jobs: &[(&str, &TensorType, Fill)], seed: u64) -> BTreeMap<String, Tensor> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut drawn = Vec::new();
        while let Some((name, ty, fill)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            drawn.push(((*name).to_owned(), draw(name, ty, *fill, seed)));
        }
        drawn
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(jobs.len());
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut drawn: BTreeMap<String, Tensor> = work().into_iter().collect();
        for other in others {
            match other.join() {
                Ok(part) => drawn.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        drawn
    })
}

fn draw(name: &str, ty: &TensorType, fill: Fill, seed: u64) -> Tensor {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(fnv1a(name));
    let mut bytes = vec![0; ty.bytes()];
    match fill {
        Fill::Constant(value) => write_pairs(&mut bytes, ty.dtype, || (value, value)),
        Fill::Uniform(bound) => write_pairs(&mut bytes, ty.dtype, || {
            let mut one = || (2.0 * unit(rng.next_u32()) - 1.0) * bound;
            (one(), one())
        }),
        Fill::Normal(deviation) => write_pairs(&mut bytes, ty.dtype, || {
            // Box and Muller 1958; 1 − u lies in (0, 1], whose logarithm is finite
            let radius = deviation * (-2.0 * (1.0 - unit(rng.next_u32())).ln()).sqrt();
            let (sin, cos) = (std::f32::consts::TAU * unit(rng.next_u32())).sin_cos();
            (radius * cos, radius * sin)
        }),
    }
    Tensor::from_bytes(ty.clone(), bytes)
}

/// The upper 24 bits as a fraction in [0, 1), exact in f32.
fn unit(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

/// Fills with values that are drawn two at a time.
fn write_pairs(bytes: &mut [u8], dtype: DType, mut pair: impl FnMut() -> (f32, f32)) {
    if dtype == DType::F16 {
        for slot in bytes.chunks_mut(4) {
            let (a, b) = pair();
            let [a, b] = [f16::from_f32(a).to_le_bytes(), f16::from_f32(b).to_le_bytes()];
            slot.copy_from_slice(&[a[0], a[1], b[0], b[1]][..slot.len()]);
        }
    } else {
        for slot in bytes.chunks_mut(8) {
            let (a, b) = pair();
            let [a, b] = [a.to_le_bytes(), b.to_le_bytes()];
            let (first, second) = slot.split_at_mut(4);
            first.copy_from_slice(&a);
            second.copy_from_slice(&b[..second.len()]);
        }
    }
}

/// Fowler, Noll and Vo's hash, 64 bits: the same on every platform and in every version, as `std`'s is not.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dtype: DType, parameters: &[(&str, &[usize])]) -> ParamLayout {
        let mut layout = ParamLayout::default();
        for (name, dims) in parameters {
            layout.add(name, dtype, (*dims).into());
        }
        layout
    }

    fn gpt(dtype: DType) -> ParamLayout {
        let parameters: [(&str, &[usize]); 8] = [
            ("token_embedding_table.weight", &[65, 300]),
            ("blocks.0.ln1.weight", &[300]),
            ("blocks.0.ln1.bias", &[300]),
            ("blocks.0.ffwd.net.0.weight", &[1200, 300]),
            ("blocks.0.ffwd.net.0.bias", &[1200]),
            ("ln.weight", &[300]),
            ("ln.bias", &[300]),
            ("lm_head.weight", &[65, 300]),
        ];
        layout(dtype, &parameters)
    }

    #[test]
    fn a_parameter_that_is_drawn_alone_is_the_same() {
        let layout = gpt(DType::F16);
        let all = init(&layout, Init::He, 3).unwrap();
        let drawn = Drawn::new(&layout, Init::He, 3).unwrap();
        for (name, tensor) in &all {
            assert_eq!(drawn.get(name).as_deref(), Some(tensor), "{name}");
            assert_eq!(drawn.ty(name).as_ref(), Some(tensor.ty()), "{name}");
        }
        let other = "blocks.9.ln1.bias";
        assert_eq!((all.len(), drawn.get(other), drawn.ty(other)), (8, None, None));
    }

    #[test]
    fn a_copy_in_another_type_takes_nothing_from_its_original() {
        let mut layout = gpt(DType::F32);
        let (id, name) = layout.iter().map(|(id, s)| (id, s.parts[0].name.clone())).next().unwrap();
        layout.copy(id, DType::F16);
        assert_eq!(init(&layout, Init::He, 3).unwrap()[&name], init(&gpt(DType::F32), Init::He, 3).unwrap()[&name]);
    }

    fn moments(t: &Tensor) -> (f64, f64, f64) {
        let v = t.to_f64();
        let n = v.len() as f64;
        let mean = v.iter().sum::<f64>() / n;
        let deviation = (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
        (mean, deviation, v.iter().fold(0.0, |a, x| a.max(x.abs())))
    }

    /// Mean and deviation lie within five of their standard errors, the largest near where it may be.
    fn assert_spread(t: &Tensor, deviation: f64, most: f64) {
        let (mean, got, largest) = moments(t);
        let root = (t.shape().elements() as f64).sqrt();
        assert!(mean.abs() < 5.0 * deviation / root, "mean {mean}");
        assert!((got / deviation - 1.0).abs() < 5.0 / root, "deviation {got}, expected {deviation}");
        assert!(largest <= most && largest > 0.9 * most.min(3.0 * deviation), "largest {largest}, at most {most}");
    }

    #[test]
    fn default_is_pytorchs() {
        let p = init(&gpt(DType::F32), Init::Default, 7).unwrap();
        let bound = 300f64.powf(-0.5);
        assert_spread(&p["token_embedding_table.weight"], 1.0, 5.78);
        for name in ["blocks.0.ffwd.net.0.weight", "blocks.0.ffwd.net.0.bias", "lm_head.weight"] {
            assert_spread(&p[name], bound / 3f64.sqrt(), bound * (1.0 + 1e-6));
        }
        for name in ["blocks.0.ln1", "ln"] {
            assert!(p[&format!("{name}.weight")].to_f64().iter().all(|v| *v == 1.0));
            assert!(p[&format!("{name}.bias")].to_f64().iter().all(|v| *v == 0.0));
        }
    }

    #[test]
    fn he_keeps_scale_and_has_no_bias() {
        let p = init(&gpt(DType::F32), Init::He, 7).unwrap();
        let deviation = (2.0 / 300f64).sqrt();
        assert_spread(&p["blocks.0.ffwd.net.0.weight"], deviation, 5.78 * deviation);
        assert!(p["blocks.0.ffwd.net.0.bias"].to_f64().iter().all(|v| *v == 0.0));
        assert_spread(&p["token_embedding_table.weight"], 1.0, 5.78);
    }

    #[test]
    fn values_depend_on_seed_and_name_alone() {
        let all = init(&gpt(DType::F32), Init::Default, 7).unwrap();
        let one = init(&layout(DType::F32, &[("lm_head.weight", &[65, 300])]), Init::Default, 7).unwrap();
        assert!(one["lm_head.weight"] == all["lm_head.weight"]);
        let renamed = init(&layout(DType::F32, &[("head.weight", &[65, 300])]), Init::Default, 7).unwrap();
        assert!(renamed["head.weight"] != all["lm_head.weight"]);
        let reseeded = init(&gpt(DType::F32), Init::Default, 8).unwrap();
        assert!(reseeded["lm_head.weight"] != all["lm_head.weight"]);
    }

    #[test]
    fn f16_is_f32_rounded_also_for_an_odd_number() {
        let parameters: [(&str, &[usize]); 2] = [("a.weight", &[3, 5]), ("a.bias", &[3])];
        let full = init(&layout(DType::F32, &parameters), Init::Default, 1).unwrap();
        let half = init(&layout(DType::F16, &parameters), Init::Default, 1).unwrap();
        for name in ["a.weight", "a.bias"] {
            assert!(half[name] == full[name].cast(DType::F16));
        }
    }

    #[test]
    fn packing_changes_nothing() {
        let mut packed = ParamLayout::default();
        let q = packed.add("q.weight", DType::F32, [4, 8].into());
        let k = packed.add("k.weight", DType::F32, [4, 8].into());
        let before = init(&packed, Init::He, 3).unwrap();
        packed.pack("qk", &[q, k]);
        assert!(init(&packed, Init::He, 3).unwrap() == before);
    }

    #[test]
    fn a_parameter_without_a_rule_is_named() {
        let unknown = layout(DType::F32, &[("conv.weight", &[4, 3, 3])]);
        assert_eq!(
            init(&unknown, Init::He, 0).unwrap_err().to_string(),
            "parameter \"conv.weight\" (4, 3, 3) has no rule of initialisation; expected an embedding table (V, E), \
             the weight or bias (E) of a norm named ln, ln1, …, a linear's weight (out, in), or a bias beside one"
        );
        for lone in [("a.bias", &[4usize][..]), ("weight", &[4, 4])] {
            assert!(matches!(init(&layout(DType::F32, &[lone]), Init::He, 0), Err(ModelError::Init { .. })));
        }
    }
}
