//! Memory plans of training steps of the seed's models at full size, made without a device.

use kiln::caps::DeviceCaps;
use kiln::grad::Checkpoint;
use kiln::graph::Graph;
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig, Loss};
use kiln::select::Overlap;
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
fn gptlite_small_trains_within_1850_mib() {
    let forward = Gptlite::new(GptliteConfig::small()).build_training(1, 2048, Loss::Seed).unwrap();
    within("GPTlite Small", &forward, &TrainOptions::default(), 1850);
    // what norms make, two of a block
    let kept = TrainOptions { checkpoint: Checkpoint::None, ..TrainOptions::default() };
    let (anew, kept) = [TrainOptions::default(), kept].map(|o| planned("GPTlite Small", &forward, &o)).into();
    let norms = 24 * (2048 * 768 * 4) as u64;
    assert!(kept.plan.total() - anew.plan.total() >= norms * 3 / 4, "{} {}", kept.plan, anew.plan);
    assert_eq!(anew.recording.dispatches.len(), kept.recording.dispatches.len() + 25);
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

/// The launches of GPTlite's step, and how many wait for nothing: one by one, and with those side by side that may be.
#[test]
fn the_gradients_of_gptlite_s_products_run_side_by_side() {
    let forward = Gptlite::new(GptliteConfig::small()).build_training(1, 2048, Loss::Seed).unwrap();
    let made = |overlap| {
        let options = CompileOptions { overlap, ..CompileOptions::default() };
        compile_training(&forward, &TrainOptions::default(), &caps(), &options).unwrap()
    };
    let (one_by_one, beside) = (made(Overlap::Never), made(Overlap::Long));
    let free = [&one_by_one, &beside].map(|c| c.recording.barriers().free());
    println!("{free:?} of {} launches wait for nothing", beside.recording.dispatches.len());
    assert_eq!(one_by_one.recording.passes, [0]);
    // all that is marked runs freely, and each pass begins with what it runs beside
    let barriers = beside.recording.barriers();
    for (at, step) in beside.selected.steps.iter().enumerate().filter(|(_, s)| s.beside) {
        assert_eq!(barriers.each[at].buffers, [], "{} waits", step.name);
        assert!(!beside.recording.passes.contains(&at), "{}", step.name);
    }
    // dx and dw of three products a block, dq and dk with dv; those of a fourth run beside what is at hand before them
    let with = |name: &str, what: &str| {
        let at = beside.selected.steps.iter().position(|s| s.name == format!("{name}.{what}"));
        let at = at.unwrap_or_else(|| panic!("no {name}.{what}"));
        beside.selected.groups()[at].0
    };
    for block in 0..12 {
        let dw = |name: &str, what: &str| {
            let name = format!("blocks.{block}.{name}");
            assert_eq!(with(&name, "grad.dx"), with(&name, what), "{name}");
        };
        dw("sa.proj", "grad.dw_db");
        dw("sa.qkv", "grad.dw");
        dw("ffwd.net.2", "grad.dw_db");
        let name = format!("blocks.{block}.sa.attention");
        let queries = with(&name, "grad.dq_dk_dv (dq)");
        assert_eq!(queries, with(&name, "grad.dq_dk_dv (dk, dv)"), "{name}");
    }
    // the steps of vectors come at the end, in one pass
    let last = beside.recording.passes[beside.recording.passes.len() - 1];
    let vectors = beside.selected.steps[last..].iter().filter(|s| s.name.starts_with("adam.")).count();
    assert!(vectors >= 12 * 7, "{vectors} of {}", beside.selected.steps.len() - last);
    assert!(free[1] >= free[0] + 60, "{free:?}");
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
    // Adam writes what the forward pass reads, and looks at gradients are a few launches for all of them
    let steps = &compiled.selected.steps;
    println!("{} launches", steps.len());
    let of = |kernel: &'static str| steps.iter().filter(move |s| s.launch.key.name() == kernel);
    assert_eq!(of("elementwise").filter(|s| s.name.ends_with("weight.f16") || s.name.ends_with("bias.f16")).count(), 0);
    let adams = of("adam").count();
    assert!(of("adam").all(|s| s.launch.operands.len() == 6), "{adams}");
    assert!(adams > 100 && of("magnitude").count() * 5 < adams, "{}, {adams}", of("magnitude").count());
    let error = compile_training(&forward, &options, &self::caps(), &CompileOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "parameter \"token_embedding_table.weight.f16\": f16, but this adapter has no f16 shaders; build the model in f32 or use \
         another adapter"
    );
}
