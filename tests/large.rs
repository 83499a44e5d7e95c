//! One layer of the seed's wide model: its weight takes 256 MiB, twice what one binding covers on Mesa's CPU adapter and
//! on every adapter with WebGPU's default limits. And outputs that stay on the device.

mod device;

use kiln::caps::DeviceCaps;
use kiln::graph::{Builder, DType, TensorType};
use kiln::session::{CompileOptions, Mode};
use kiln::tensor::Tensor;
use std::collections::BTreeMap;

const WIDTH: usize = 8192;
const BATCH: usize = 3;

/// A fixed sequence in ±1 without a short period.
fn noise(i: usize) -> f32 {
    ((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

#[test]
fn a_weight_larger_than_a_binding_is_cut_in_every_mode() {
    let Some(session) = device::session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [BATCH, WIDTH])).unwrap();
    let w = b.parameter("weight", TensorType::new(DType::F32, [WIDTH, WIDTH])).unwrap();
    let bias = b.parameter("bias", TensorType::new(DType::F32, [WIDTH])).unwrap();
    let y = b.linear(x, w, Some(bias)).unwrap();
    let y = b.relu(y).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish().unwrap();
    let weight: Vec<f32> = (0..WIDTH * WIDTH).map(noise).collect();
    let bias: Vec<f32> = (0..WIDTH).map(|i| noise(i * 31)).collect();
    let input: Vec<f32> = (0..BATCH * WIDTH).map(|i| noise(i * 7 + 3)).collect();
    let params = BTreeMap::from([
        ("weight".to_owned(), Tensor::f32([WIDTH, WIDTH], &weight)),
        ("bias".to_owned(), Tensor::f32([WIDTH], &bias)),
    ]);
    // what any adapter offers, so that the cut is tested on large ones too
    let limits = DeviceCaps { max_binding_bytes: DeviceCaps::PORTABLE.max_binding_bytes, ..session.caps().clone() };
    for mode in [Mode::Eager, Mode::Recorded, Mode::Fused] {
        let options = CompileOptions { limits: Some(limits.clone()), ..CompileOptions::mode(mode) };
        let program = session.compile(&graph, &params, &options).unwrap();
        let cuts = program.compiled().selected.weights.iter().filter(|w| w.columns.is_some()).count();
        assert!(cuts >= 2, "{mode}: the weight is in {cuts} tensors");
        let y = program.run(&[("x", &Tensor::f32([BATCH, WIDTH], &input))]).unwrap()["y"].to_f32();
        let (mut difference, mut norm) = (0.0, 0.0);
        for row in 0..BATCH {
            // both sides of the cut, both ends, and some between
            for column in (0..WIDTH).step_by(61).chain([WIDTH / 2 - 1, WIDTH / 2, WIDTH - 1]) {
                let products =
                    (0..WIDTH).map(|k| f64::from(input[row * WIDTH + k]) * f64::from(weight[column * WIDTH + k]));
                let expected = (products.sum::<f64>() + f64::from(bias[column])).max(0.0);
                difference += (f64::from(y[row * WIDTH + column]) - expected).powi(2);
                norm += expected * expected;
            }
        }
        let error = (difference / norm).sqrt();
        assert!(error < 2e-6, "{mode}: relative error {error:e}");
    }
}

#[test]
fn a_kept_output_is_its_runs_own() {
    let Some(session) = device::session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [5])).unwrap();
    let twice = b.scale(x, 2.0).unwrap();
    let thrice = b.scale(x, 3.0).unwrap();
    b.output_kept("twice", twice).unwrap();
    b.output("thrice", thrice).unwrap();
    let graph = b.finish().unwrap();
    let program = session.compile(&graph, &BTreeMap::new(), &CompileOptions::default()).unwrap();
    let one = Tensor::f32([5], &[1.0, 2.0, 3.0, 4.0, 5.0]);
    let other = Tensor::f32([5], &[-1.0; 5]);
    let first = program.submit(&[("x", &one)]).unwrap();
    let second = program.submit(&[("x", &other)]).unwrap();
    let (kept, later) = (first.kept("twice").unwrap(), second.kept("twice").unwrap());
    assert_eq!(
        first.kept("thrice").err().unwrap().to_string(),
        "output \"thrice\" is not kept on the device; the program's outputs are: twice f32 (5), thrice f32 (5)"
    );
    let outputs = first.wait().unwrap();
    assert_eq!(outputs.keys().collect::<Vec<_>>(), ["thrice"]);
    assert_eq!(outputs["thrice"].to_f32(), [3.0, 6.0, 9.0, 12.0, 15.0]);
    second.wait().unwrap();
    assert_eq!(later.read().unwrap().to_f32(), [-2.0; 5]);
    assert_eq!(kept.read().unwrap().to_f32(), [2.0, 4.0, 6.0, 8.0, 10.0]);
    assert_eq!(kept.ty().to_string(), "f32 (5)");
}
