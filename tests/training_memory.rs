//! Memory plans of training steps of the seed's models at full size, made without a device.

use kiln::caps::DeviceCaps;
use kiln::grad::Checkpoint;
use kiln::graph::Graph;
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig, Loss};
use kiln::session::{CompileOptions, Compiled};
use kiln::train::{LossScaling, Optimiser, Precision, TrainOptions};
use kiln::trainer::compile_training;

/// A large GPU's.
fn caps() -> DeviceCaps {
    DeviceCaps {
        cpu: false,
        max_binding_bytes: 2 << 30,
        max_buffer_bytes: 4 << 30,
        workgroup_bytes: 48 << 10,
        max_invocations: 1024,
        max_storage_buffers: 16,
        ..DeviceCaps::PORTABLE
    }
}

fn planned(name: &str, forward: &Graph, options: &TrainOptions) -> Compiled {
    let compiled = compile_training(forward, options, &caps(), &CompileOptions::default()).unwrap();
    println!("{name}: {}; {} dispatches", compiled.plan, compiled.recording.dispatches.len());
    compiled
}

/// The plan takes at most so many MiB in all, and what is made is what is planned.
fn within(name: &str, forward: &Graph, options: &TrainOptions, mib: u64) {
    fits(name, &planned(name, forward, options), mib);
}

fn fits(name: &str, compiled: &Compiled, mib: u64) {
    assert!(compiled.plan.total() <= mib << 20, "{name}: {}", compiled.plan);
    // parameters of dispatches, and buffers' padding
    assert!(compiled.recording.bytes() <= compiled.plan.total() + (24 << 20), "{name}: {}", compiled.recording.bytes());
}

#[test]
fn gptlite_small_trains_within_2000_mib() {
    let forward = Gptlite::new(GptliteConfig::small()).build_training(1, 2048, Loss::Seed).unwrap();
    within("GPTlite Small", &forward, &TrainOptions::default(), 2000);
}

#[test]
fn the_wide_network_trains_within_2800_mib() {
    let forward = Dnn::new(DnnConfig::wide()).build_training(2048, Loss::Seed).unwrap();
    within("wide", &forward, &TrainOptions::default(), 2800);
}

#[test]
fn the_deep_network_trains_within_5700_mib() {
    let forward = Dnn::new(DnnConfig::deep()).build_training(2048, Loss::Seed).unwrap();
    let compiled = planned("deep", &forward, &TrainOptions::default());
    fits("deep", &compiled, 5700);
    // for 16 layers a copy of the weights, three launches of kernels and two updates, not six launches a layer
    let dispatches = compiled.recording.dispatches.len();
    assert!(dispatches < 2048 / 16 * 6 + 20, "{dispatches} dispatches");
}

#[test]
fn the_deep_network_trains_within_2500_mib_with_checkpoints() {
    let forward = Dnn::new(DnnConfig::deep()).build_training(2048, Loss::Seed).unwrap();
    let options = TrainOptions { checkpoint: Checkpoint::Every(32), ..TrainOptions::default() };
    within("deep, checkpoints", &forward, &options, 2500);
}

#[test]
fn clipping_and_skipping_hold_all_gradients_at_once() {
    let forward = Gptlite::new(GptliteConfig::small()).build_training(1, 2048, Loss::Seed).unwrap();
    let options = TrainOptions { clip_norm: Some(1.0), skip_non_finite: true, ..TrainOptions::default() };
    let without = planned("GPTlite Small", &forward, &TrainOptions::default());
    let with = planned("GPTlite Small, clipped and skipped", &forward, &options);
    let weights: usize = forward.layout.iter().map(|(_, s)| s.shape.elements() * 4).sum();
    let more = with.plan.total() - without.plan.total();
    assert!((0..2 * weights as u64).contains(&more), "{more} more for {weights} bytes of weights");
    assert!(with.recording.dispatches.len() > without.recording.dispatches.len());
}

#[test]
fn momentum_takes_one_state_a_weight_and_its_new_value_goes_at_once() {
    let forward = Dnn::new(DnnConfig::wide()).build_training(2048, Loss::CrossEntropy).unwrap();
    let optimiser = Optimiser::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0 };
    within("wide, momentum", &forward, &TrainOptions { optimiser, ..TrainOptions::default() }, 2200);
}

#[test]
fn in_f16_activations_take_half() {
    let caps = DeviceCaps { f16: true, ..caps() };
    let forward = Gptlite::new(GptliteConfig::small()).build_training(1, 2048, Loss::Seed).unwrap();
    let options = TrainOptions { precision: Precision::F16(LossScaling::default()), ..TrainOptions::default() };
    let compiled = compile_training(&forward, &options, &caps, &CompileOptions::default()).unwrap();
    println!("GPTlite Small in f16: {}", compiled.plan);
    assert!(compiled.plan.total() <= 1700 << 20, "{}", compiled.plan);
    let error = compile_training(&forward, &options, &self::caps(), &CompileOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cast \"token_embedding_table.weight.f16\": f16, but this adapter has no f16 shaders; build the model in f32 or use \
         another adapter"
    );
}
