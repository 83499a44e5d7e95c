//! In: values of a stack of linear layers and of its gradient; out: what comes out of them, layer by layer. Knows the
//! products of one layer.

use super::node::store;
use super::{Value, elementwise, matmul};
use crate::graph::{Activation, DType, Shape};

/// x (…, N), weights (L, N, N), maybe biases (L, N) → y and what each layer reads.
pub(super) fn linear_stack(activation: Activation, dtype: DType, x: &[&Value]) -> Vec<Vec<f64>> {
    let (n, layers) = (x[0].shape.last(), x[1].shape.dims()[0]);
    let chain = activation.forward(x.len() > 2);
    let mut y = x[0].clone();
    let mut kept = Vec::with_capacity(layers * y.data.len());
    for layer in 0..layers {
        kept.extend_from_slice(&y.data);
        let bias = x.get(2).map(|b| Value { shape: Shape::from([n]), data: b.data[layer * n..][..n].to_vec() });
        let product = matmul::linear(&y, &weight(x[1], layer));
        y.data = elementwise::epilogue(&chain, product, &bias.iter().collect::<Vec<_>>(), &y.shape);
        store(dtype, &mut y.data);
    }
    vec![y.data, kept]
}

/// weights, what each layer read, y, dy → dx and the gradient of each layer's sums.
pub(super) fn linear_stack_grad(activation: Activation, dtype: DType, x: &[&Value]) -> Vec<Vec<f64>> {
    let [w, kept, y, dy] = x[..] else { return Vec::new() };
    let (layers, size) = (w.shape.dims()[0], y.data.len());
    let chain = activation.backward();
    let mut dz = vec![0.0; kept.data.len()];
    let mut dx = dy.clone();
    for layer in (0..layers).rev() {
        let made = match layer + 1 < layers {
            true => Value { shape: y.shape.clone(), data: kept.data[(layer + 1) * size..][..size].to_vec() },
            false => y.clone(),
        };
        dx.data = elementwise::epilogue(&chain, std::mem::take(&mut dx.data), &[&made], &y.shape);
        store(dtype, &mut dx.data);
        dz[layer * size..][..size].copy_from_slice(&dx.data);
        // a linear over the transposed weight
        let n = w.shape.last();
        let w = weight(w, layer);
        let turned = (0..n * n).map(|i| w.data[i % n * n + i / n]).collect();
        dx.data = matmul::linear(&dx, &Value { shape: w.shape.clone(), data: turned });
    }
    vec![dx.data, dz]
}

/// What each layer read (L, …, N) and the gradient of its sums (L, …, N) → dW (L, N, N) and db (L, N).
pub(super) fn linear_stack_param_grad(kept: &Value, dz: &Value) -> Vec<Vec<f64>> {
    let layers = kept.shape.dims()[0];
    let shape = Shape::from(&kept.shape.dims()[1..]);
    let size = shape.elements();
    let of = |v: &Value, layer: usize| Value { shape: shape.clone(), data: v.data[layer * size..][..size].to_vec() };
    let mut all = vec![Vec::new(), Vec::new()];
    for layer in 0..layers {
        let one: Vec<Vec<f64>> = matmul::linear_grad(&of(kept, layer), &of(dz, layer)).into();
        all.iter_mut().zip(one).for_each(|(all, one)| all.extend(one));
    }
    all
}

/// (N, N) of one layer.
fn weight(w: &Value, layer: usize) -> Value {
    let shape = Shape::from(&w.shape.dims()[1..]);
    let size = shape.elements();
    Value { data: w.data[layer * size..][..size].to_vec(), shape }
}
