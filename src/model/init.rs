//! In: parameters' names and shapes; out: fresh values for them, as PyTorch or He draws them. Knows layouts, not models.

use super::ModelError;
use crate::graph::{DType, ParamLayout, Shape, TensorType};
use crate::tensor::Tensor;
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
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
    let mut types = BTreeMap::new();
    for (_, storage) in layout.iter() {
        for part in &storage.parts {
            types.insert(part.name.as_str(), TensorType::new(storage.dtype, part.shape.clone()));
        }
    }
    let shapes: BTreeMap<&str, &Shape> = types.iter().map(|(name, ty)| (*name, &ty.shape)).collect();
    let mut jobs = Vec::with_capacity(types.len());
    for (&name, ty) in &types {
        if !matches!(ty.dtype, DType::F32 | DType::F16) {
            return Err(ModelError::DType { got: ty.dtype });
        }
        jobs.push((name, ty, fill_of(name, &shapes, kind)?));
    }
    Ok(draw_all(&jobs, seed))
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
