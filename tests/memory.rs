//! Memory plans without a device: the seed's models within their budgets, random graphs under the auditor, and wrong
//! plans that it must refuse.

mod device;
mod random;

use kiln::caps::{DeviceCaps, MatmulPrecision};
use kiln::graph::{Builder, DType, Graph, TensorType, Unary, ValueId};
use kiln::kernel::Choices;
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig};
use kiln::plan::{PlanError, SlotId, audit, plan};
use kiln::select::{Selected, TensorId, TensorKind, select};
use kiln::session::{CompileOptions, Mode, compile};
use proptest::prelude::prop_assert;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// The adapter's caps where there is one, and those of a portable GPU.
fn all_caps() -> Vec<DeviceCaps> {
    let portable = DeviceCaps { max_binding_bytes: 1 << 30, max_buffer_bytes: 1 << 30, ..DeviceCaps::PORTABLE };
    device::session().map(|s| s.caps().clone()).into_iter().chain([portable]).collect()
}

/// A model's plan takes at most so many MiB in all.
fn within(name: &str, graph: &Graph, mib: u64) {
    for caps in all_caps() {
        let compiled = compile(graph, &caps, &CompileOptions::default()).unwrap();
        println!("{name}: {}", compiled.plan);
        assert!(compiled.plan.total() <= mib << 20, "{name}: {}", compiled.plan);
        assert!(compiled.recording.bytes() <= (mib << 20) + (1 << 20), "{name}: what is made is what is planned");
    }
}

#[test]
fn gptlite_small_is_planned_within_400_mib() {
    within("GPTlite Small", &Gptlite::new(GptliteConfig::small()).build(1, 2048).unwrap(), 400);
}

#[test]
fn the_deep_network_is_planned_within_540_mib() {
    within("deep", &Dnn::new(DnnConfig::deep()).build(2048).unwrap(), 540);
}

#[test]
fn the_wide_network_is_planned_within_970_mib() {
    within("wide", &Dnn::new(DnnConfig::wide()).build(2048).unwrap(), 970);
}

#[test]
fn the_auditor_accepts_the_plans_of_256_random_graphs() {
    let config = Config { cases: 256, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let failed = |e: String| TestCaseError::fail(e);
    let (ops, shared) = (RefCell::new(BTreeMap::new()), Cell::new(0));
    let result = runner.run(&random::plans(), |moves| {
        let graph = random::graph(&moves).map_err(|e| failed(e.to_string()))?;
        random::count(&graph, &mut ops.borrow_mut());
        for cpu in [true, false] {
            let caps = DeviceCaps { f16: true, cpu, ..DeviceCaps::PORTABLE };
            for mode in [Mode::Recorded, Mode::Fused] {
                // compiling audits
                let [tight, loose] = [true, false].map(|alias| {
                    let options = CompileOptions { alias, ..CompileOptions::mode(mode) };
                    compile(&graph, &caps, &options).map(|c| c.plan)
                });
                let tight = tight.map_err(|e| failed(format!("{e}\n{graph}")))?;
                let loose = loose.map_err(|e| failed(format!("{e}\n{graph}")))?;
                prop_assert!(tight.total() <= loose.total(), "{}\n{}", tight, loose);
                shared.set(shared.get() + usize::from(tight.slot_bytes.len() < loose.slot_bytes.len()));
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(shared.get() > 512, "of 1024 plans {} share slots", shared.get());
    let ops = ops.into_inner();
    for op in random::every_op() {
        assert!(ops.contains_key(&op), "no graph has {op}");
    }
}

/// a = x·x, b = x·a, c = a·b, read = s·c: temporaries two at once; then s takes tanh(s).
fn sample() -> Selected {
    let mut g = Builder::new();
    let ty = TensorType::new(DType::F32, [4, 4]);
    let x = g.input("x", ty.clone()).unwrap();
    let s = g.state("s", ty).unwrap();
    let named = |g: &mut Builder, name: &str, a: ValueId, b: ValueId| g.scope(name, |g| g.matmul(a, b)).unwrap();
    let a = named(&mut g, "a", x, x);
    let b = named(&mut g, "b", x, a);
    let c = named(&mut g, "c", a, b);
    let next = g.unary(Unary::Tanh, s).unwrap();
    g.update(s, next).unwrap();
    let read = named(&mut g, "read", s, c);
    g.output("c", c).unwrap();
    g.output("read", read).unwrap();
    select(&g.finish().unwrap(), &DeviceCaps::PORTABLE, MatmulPrecision::Highest, &Choices::default()).unwrap()
}

/// The temporary that the step of this name writes.
fn made(selected: &Selected, name: &str) -> TensorId {
    let step = selected.steps.iter().find(|s| s.name.starts_with(name)).unwrap();
    step.launch.operands.last().unwrap().tensor
}

#[test]
fn the_auditor_refuses_a_slot_that_is_taken_too_early() {
    let selected = sample();
    let mut wrong = plan(&selected, true);
    audit(&selected, &wrong).unwrap();
    let [a, b] = ["a.", "b."].map(|n| made(&selected, n));
    // c still reads a when b is written
    let slot = wrong.slots[a.0];
    let step = selected.steps.iter().position(|s| s.name.starts_with("c.")).unwrap();
    wrong.slots[b.0] = Some(SlotId(wrong.slot_bytes.len()));
    wrong.slot_bytes.push(64);
    audit(&selected, &wrong).unwrap();
    let extra = TensorId(selected.tensors.len());
    let mut broken = selected.clone();
    broken.tensors.push(broken.tensors[b.0].clone());
    broken.tensors[extra.0].name = "intruder".into();
    wrong.slots.push(slot);
    let mut write = broken.steps[step - 1].clone();
    write.name = "intruder".into();
    write.launch.operands[1] = write.launch.operands[0].clone();
    write.launch.operands.last_mut().unwrap().tensor = extra;
    broken.steps.insert(step, write);
    let error = audit(&broken, &wrong).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("launch {} \"c.matmul\" reads \"a.matmul\", but its slot holds \"intruder\"", step + 1)
    );
    assert!(matches!(error, PlanError::Overwritten { .. }));
}

#[test]
fn the_auditor_refuses_a_read_of_what_nothing_wrote() {
    let mut selected = sample();
    selected.steps.retain(|s| !s.name.starts_with("a."));
    let plan = plan(&selected, true);
    let error = audit(&selected, &plan).unwrap_err();
    assert_eq!(error.to_string(), "launch 0 \"b.matmul\" reads \"a.matmul\", but its slot holds nothing");
    // an output is read too
    let mut selected = sample();
    selected.steps.retain(|s| !s.name.starts_with("read."));
    let plan = kiln::plan::plan(&selected, true);
    let error = audit(&selected, &plan).unwrap_err();
    assert!(matches!(&error, PlanError::Overwritten { name, .. } if name == "read back"), "{error}");
}

#[test]
fn the_auditor_refuses_a_slot_that_is_read_and_written_at_once() {
    let selected = sample();
    let mut wrong = plan(&selected, true);
    let [b, c] = ["b.", "c."].map(|n| made(&selected, n));
    wrong.slots[c.0] = wrong.slots[b.0];
    let error = audit(&selected, &wrong).unwrap_err();
    let slot = wrong.slots[b.0].unwrap();
    assert!(
        matches!(&error, PlanError::ReadWrite { name, slot: s, .. } if name == "c.matmul" && *s == slot),
        "{error}"
    );
    assert_eq!(error.to_string(), format!("launch 2 \"c.matmul\" reads and writes slot {}", slot.0));
}

#[test]
fn the_auditor_refuses_a_slot_that_is_too_small() {
    let selected = sample();
    let mut wrong = plan(&selected, true);
    let slot = wrong.slots[made(&selected, "b.").0].unwrap();
    wrong.slot_bytes[slot.0] = 60;
    let error = audit(&selected, &wrong).unwrap_err();
    assert!(matches!(error, PlanError::Size { .. }));
    assert!(error.to_string().ends_with(" of 64 bytes is in a slot of 60"), "{error}");
}

#[test]
fn the_auditor_refuses_a_state_that_is_read_after_its_update() {
    let mut selected = sample();
    let s = selected.states[0].tensor;
    assert_eq!(selected.tensors[s.0].kind, TensorKind::State);
    // the update before the last reader
    let update = selected.steps.iter().position(|x| x.launch.operands.last().unwrap().tensor == s).unwrap();
    let reader = selected.steps.iter().position(|x| x.name.starts_with("read.")).unwrap();
    assert!(reader < update, "{selected}");
    let step = selected.steps.remove(update);
    selected.steps.insert(reader, step);
    let plan = plan(&selected, true);
    let error = audit(&selected, &plan).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("launch {} \"read.matmul\" reads state \"s\" after it was updated", reader + 1)
    );
    assert!(matches!(error, PlanError::State { .. }));
}
