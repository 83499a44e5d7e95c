//! In: parameters' layout and values; out: [`LayerFusion`], the layers that are most alike, in pairs of which one can be
//! frozen while the other is trained. Knows names, shapes and numbers; neither graphs nor training.

use super::{ModelError, ParamSource};
use crate::graph::{ParamLayout, Shape};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How alike two layers are, by all their parameters a and b as one vector each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distance {
    /// 1 − a·b / (‖a‖ ‖b‖), from 0 to 2: the direction alone. 1 where one of them is all zeros.
    #[default]
    Cosine,
    /// ‖a − b‖.
    Euclidean,
}

/// Two layers of equal shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPair {
    /// The earlier one, which is to be frozen.
    pub frozen: String,
    /// The later one, which goes on learning.
    pub trained: String,
    /// [`Distance::Cosine`] of the two.
    pub cosine: f64,
    /// [`Distance::Euclidean`] of the two.
    pub euclidean: f64,
}

impl LayerPair {
    fn distance(&self, by: Distance) -> f64 {
        match by {
            Distance::Cosine => self.cosine,
            Distance::Euclidean => self.euclidean,
        }
    }
}

/// The pairs of layers that are most alike. A frozen layer needs no gradient of its weights, no moments and no update.
///
/// ```
/// use kiln::model::{Distance, Dnn, DnnConfig, Init, LayerFusion, Loss, init};
/// use kiln::train::{Group, Names, TrainOptions};
/// let forward = Dnn::new(DnnConfig::square(8, 6)).build_training(4, Loss::CrossEntropy)?;
/// let params = init(&forward.layout, Init::Default, 0)?;
/// let fusion = LayerFusion::of(&forward.layout, &params, 2, Distance::Cosine)?;
/// print!("{fusion}");
/// let groups = vec![Group::frozen(Names::exactly(fusion.frozen()))];
/// let options = TrainOptions { groups, ..TrainOptions::default() };
/// # assert_eq!(fusion.pairs.len(), 2);
/// # kiln::train::training_step(&forward, &options).unwrap();
/// # Ok::<(), kiln::model::ModelError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LayerFusion {
    /// The closest first; each layer is in one at most.
    pub pairs: Vec<LayerPair>,
    /// By what they are ranked.
    pub by: Distance,
    /// Each layer's parameters.
    parameters: BTreeMap<String, Vec<(String, usize)>>,
}

/// A module with a weight matrix, and all its parameters' values.
struct Layer {
    name: String,
    parameters: Vec<(String, Shape)>,
    values: Vec<f32>,
    norm: f64,
}

impl LayerFusion {
    /// Compares all layers of equal shapes, which are modules that have a weight matrix, and takes the `count` closest
    /// pairs that share no layer. The time is that of a product for each pair of layers.
    ///
    /// # Errors
    /// If a parameter of a layer is not given or has another shape.
    pub fn of(
        layout: &ParamLayout,
        params: &dyn ParamSource,
        count: usize,
        by: Distance,
    ) -> Result<LayerFusion, ModelError> {
        let layers = layers(layout, params)?;
        let mut all = compare(&layers);
        // a weight that is NaN or infinite is like no other
        all.retain(|(_, pair)| pair.distance(by).is_finite());
        all.sort_by(|(a, x), (b, y)| x.distance(by).total_cmp(&y.distance(by)).then(a.cmp(b)));
        let mut taken = vec![false; layers.len()];
        let mut pairs = Vec::new();
        for ((a, b), pair) in all {
            if pairs.len() < count && !taken[a] && !taken[b] {
                (taken[a], taken[b]) = (true, true);
                pairs.push(pair);
            }
        }
        let sized = |l: &Layer| l.parameters.iter().map(|(n, s)| (n.clone(), s.elements())).collect();
        let parameters = layers.iter().map(|l| (l.name.clone(), sized(l))).collect();
        Ok(LayerFusion { pairs, by, parameters })
    }

    /// The parameters of all layers that are to be frozen, in the order of their pairs.
    pub fn frozen(&self) -> Vec<String> {
        let of =
            |pair: &LayerPair| self.parameters.get(&pair.frozen).into_iter().flatten().map(|(name, _)| name.clone());
        self.pairs.iter().flat_map(of).collect()
    }

    /// Numbers in the layers that are to be frozen.
    pub fn frozen_elements(&self) -> usize {
        let of =
            |pair: &LayerPair| self.parameters.get(&pair.frozen).into_iter().flatten().map(|(_, n)| n).sum::<usize>();
        self.pairs.iter().map(of).sum()
    }
}

/// The layers in the order of their first parameter.
fn layers(layout: &ParamLayout, params: &dyn ParamSource) -> Result<Vec<Layer>, ModelError> {
    let mut modules: Vec<(String, Vec<(String, Shape)>)> = Vec::new();
    let mut at: BTreeMap<String, usize> = BTreeMap::new();
    for (part, _) in layout.parameters() {
        let module = part.name.rsplit_once('.').map_or("", |(module, _)| module).to_owned();
        let index = *at.entry(module.clone()).or_insert_with(|| {
            modules.push((module, Vec::new()));
            modules.len() - 1
        });
        // a storage that packs others stands beside them in a layout
        let parameters = &mut modules[index].1;
        if !parameters.iter().any(|(name, _)| *name == part.name) {
            parameters.push((part.name.clone(), part.shape.clone()));
        }
    }
    modules.retain(|(_, parameters)| parameters.iter().any(|(_, shape)| shape.rank() == 2));
    let mut layers = Vec::with_capacity(modules.len());
    for (name, parameters) in modules {
        let mut values = Vec::new();
        for (parameter, shape) in &parameters {
            let given = params.get(parameter).filter(|t| t.shape() == shape).ok_or_else(|| ModelError::Parameter {
                name: parameter.clone(),
                expected: shape.clone(),
                got: params.ty(parameter).map(|ty| ty.shape),
            })?;
            values.extend(given.to_f32());
        }
        let norm = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        layers.push(Layer { name, parameters, values, norm });
    }
    Ok(layers)
}

/// Every pair of layers of equal shapes, on all cores.
fn compare(layers: &[Layer]) -> Vec<((usize, usize), LayerPair)> {
    let shapes = |l: &Layer| l.parameters.iter().map(|(_, shape)| shape.clone()).collect::<Vec<_>>();
    let shapes: Vec<Vec<Shape>> = layers.iter().map(shapes).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        loop {
            let a = next.fetch_add(1, Ordering::Relaxed);
            if a >= layers.len() {
                return made;
            }
            let others = (a + 1..layers.len()).filter(|b| shapes[*b] == shapes[a]);
            made.extend(others.map(|b| ((a, b), pair(&layers[a], &layers[b]))));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(layers.len().max(1));
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut made = work();
        for other in others {
            match other.join() {
                Ok(part) => made.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        made
    })
}

fn pair(a: &Layer, b: &Layer) -> LayerPair {
    let both = || a.values.iter().zip(&b.values).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let norms = a.norm * b.norm;
    let cosine = if norms == 0.0 { 1.0 } else { 1.0 - both().map(|(a, b)| a * b).sum::<f64>() / norms };
    let euclidean = both().map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    LayerPair { frozen: a.name.clone(), trained: b.name.clone(), cosine, euclidean }
}

/// A line a pair, then what freezing them saves.
impl fmt::Display for LayerFusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            Distance::Cosine => "cosine",
            Distance::Euclidean => "Euclidean",
        };
        writeln!(f, "{} pairs of {} layers, by {by} distance", self.pairs.len(), self.parameters.len())?;
        for LayerPair { frozen, trained, cosine, euclidean } in &self.pairs {
            writeln!(f, "freeze {frozen}, train {trained}: cosine {cosine:.4}, Euclidean {euclidean:.4}")?;
        }
        let all: usize = self.parameters.values().flatten().map(|(_, n)| n).sum();
        let share = 100.0 * self.frozen_elements() as f64 / all.max(1) as f64;
        writeln!(f, "{} of {all} weights keep their values ({share:.1} %)", self.frozen_elements())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::DType;
    use crate::tensor::Tensor;

    /// Layers `layers.0` to `layers.N` of one weight (1, 2) and one bias, and one of another shape.
    fn layout(count: usize) -> ParamLayout {
        let mut layout = ParamLayout::default();
        for i in 0..count {
            layout.add(&format!("layers.{i}.weight"), DType::F32, [1, 2].into());
            layout.add(&format!("layers.{i}.bias"), DType::F32, [1].into());
        }
        layout.add("head.weight", DType::F32, [2, 2].into());
        layout.add("ln.weight", DType::F32, [2].into());
        layout
    }

    fn params(layers: &[[f32; 3]]) -> BTreeMap<String, Tensor> {
        let mut params = BTreeMap::from([
            ("head.weight".to_owned(), Tensor::f32([2, 2], &[1.0; 4])),
            ("ln.weight".to_owned(), Tensor::f32([2], &[1.0; 2])),
        ]);
        for (i, [a, b, c]) in layers.iter().enumerate() {
            params.insert(format!("layers.{i}.weight"), Tensor::f32([1, 2], &[*a, *b]));
            params.insert(format!("layers.{i}.bias"), Tensor::f32([1], &[*c]));
        }
        params
    }

    #[test]
    fn the_closest_pairs_come_first_and_share_no_layer() {
        // 0 and 3 point the same way, 1 and 2 lie close together, 0 and 1 are next but taken
        let values = [[1.0, 0.0, 0.0], [0.9, 0.4, 0.0], [0.8, 0.5, 0.0], [10.0, 0.0, 0.0]];
        let by = |by| LayerFusion::of(&layout(4), &params(&values), 2, by).unwrap();
        let cosine = by(Distance::Cosine);
        let names = |f: &LayerFusion| -> Vec<(String, String)> {
            f.pairs.iter().map(|p| (p.frozen.clone(), p.trained.clone())).collect()
        };
        let pair = |a: usize, b: usize| (format!("layers.{a}"), format!("layers.{b}"));
        assert_eq!(names(&cosine), [pair(0, 3), pair(1, 2)]);
        assert_eq!(names(&by(Distance::Euclidean)), [pair(1, 2), pair(0, 3)]);
        assert_eq!(cosine.frozen(), ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]);
        assert_eq!(
            cosine.to_string(),
            "2 pairs of 5 layers, by cosine distance\n\
             freeze layers.0, train layers.3: cosine 0.0000, Euclidean 9.0000\n\
             freeze layers.1, train layers.2: cosine 0.0098, Euclidean 0.1414\n\
             6 of 16 weights keep their values (37.5 %)\n"
        );
    }

    #[test]
    fn layers_that_are_not_finite_are_like_no_other() {
        let of = |x: f32| [x, 0.0, 0.0];
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let values = [of(0.0), of(bad), of(3.0), of(2.0)];
            let found = LayerFusion::of(&layout(4), &params(&values), 4, Distance::Euclidean).unwrap();
            let pairs: Vec<_> = found.pairs.iter().map(|p| (p.frozen.as_str(), p.trained.as_str())).collect();
            assert_eq!(pairs, [("layers.2", "layers.3")], "{bad}");
        }
    }

    #[test]
    fn a_layer_that_is_not_given_is_an_error() {
        let mut params = params(&[[1.0, 0.0, 0.0]]);
        params.insert("layers.0.bias".into(), Tensor::f32([2], &[0.0; 2]));
        let error = LayerFusion::of(&layout(1), &params, 1, Distance::Cosine).unwrap_err();
        assert_eq!(error.to_string(), "parameter \"layers.0.bias\" is (2), expected (1)");
        params.remove("layers.0.bias");
        let error = LayerFusion::of(&layout(1), &params, 1, Distance::Cosine).unwrap_err();
        assert_eq!(error.to_string(), "parameter \"layers.0.bias\" is missing, expected (1)");
    }
}
