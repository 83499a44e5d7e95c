//! Every key of the catalogue against naga, in both spaces of its parameters, and the cutting of rows.

use super::*;
use crate::caps::{DeviceCaps, MatrixUnits};
use crate::graph::{AdamAttrs, AttentionAttrs, CrossEntropyAttrs, DropoutAttrs};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use proptest::prelude::*;

/// (per_row, vec, size) of the kernels over rows.
pub(super) const FORMS: [(bool, bool, u32); 5] =
    [(true, false, 64), (false, false, 64), (false, false, 256), (false, true, 64), (false, true, 256)];

fn catalogue() -> Vec<KernelKey> {
    [
        adam::catalogue(),
        attention::catalogue(),
        attention_grad::catalogue(),
        attention_stats::catalogue(),
        cross_entropy::catalogue(),
        cross_entropy_grad::catalogue(),
        dropout::catalogue(),
        elementwise::catalogue(),
        exponents::catalogue(),
        fill::catalogue(),
        gather::catalogue(),
        linear_stack::catalogue(),
        magnitude::catalogue(),
        pack_weights::catalogue(),
        matmul::catalogue(),
        norm::catalogue(),
        norm_grad::catalogue(),
        norm_param_grad::catalogue(),
        probe::catalogue(),
        reduce::catalogue(),
        scatter::catalogue(),
        softmax::catalogue(),
        softmax_grad::catalogue(),
        sum_parts::catalogue(),
    ]
    .concat()
}

const SPACES: [ParamSpace; 2] = [ParamSpace::Uniform, ParamSpace::Immediate];

/// Every key with its parameters in a buffer, then in immediates.
fn forms() -> impl Iterator<Item = (KernelKey, ParamSpace)> {
    catalogue().into_iter().flat_map(|key| SPACES.map(|space| (key.clone(), space)))
}

fn parsed(key: &KernelKey, space: ParamSpace) -> (naga::Module, naga::valid::ModuleInfo) {
    validated(&key.source(space), key.units(), key)
}

/// Whether 64-bit integers are used: browsers have none.
fn is_wide(key: &KernelKey) -> bool {
    match key {
        KernelKey::Attention(key) => key.dropout.is_some_and(|d| d.int64),
        KernelKey::AttentionGrad(key) => key.dropout.is_some_and(|d| d.int64),
        KernelKey::Dropout(key) => key.int64,
        _ => false,
    }
}

/// Parses and validates WGSL, for a device with these matrix units, and writes it as SPIR-V.
pub(super) fn validated(
    source: &str,
    units: Option<MatrixUnits>,
    key: &dyn fmt::Debug,
) -> (naga::Module, naga::valid::ModuleInfo) {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|e| panic!("{key:?}: {}\n{source}", e.emit_to_string(source)));
    let mut capabilities =
        Capabilities::SHADER_FLOAT16 | Capabilities::SHADER_FLOAT16_IN_FLOAT32 | Capabilities::IMMEDIATES;
    capabilities |= if source.contains("u64") { Capabilities::SHADER_INT64 } else { Capabilities::empty() };
    if is_device(units) {
        capabilities |= Capabilities::COOPERATIVE_MATRIX | Capabilities::SUBGROUP | Capabilities::SUBGROUP_BARRIER;
    }
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .unwrap_or_else(|e| panic!("{key:?}: {}\n{source}", e.emit_to_string(source)));
    let spv = naga::back::spv::Options { lang_version: (1, 3), ..Default::default() };
    naga::back::spv::write_vec(&module, &info, &spv, None).unwrap_or_else(|e| panic!("{key:?}: SPIR-V: {e}"));
    (module, info)
}

/// Whether cooperative matrices are used: naga writes none of them for HLSL, tint knows none.
fn is_device(units: Option<MatrixUnits>) -> bool {
    matches!(units, Some(MatrixUnits::Device { .. }))
}

#[test]
fn every_key_passes_naga_and_all_its_writers() {
    for (key, space) in forms() {
        let (module, info) = parsed(&key, space);
        if matches!(key.units(), Some(MatrixUnits::Device { side, .. }) if side != 8) {
            // Metal has matrices of 8 alone
            continue;
        }
        let msl = naga::back::msl::Options { lang_version: (2, 4), fake_missing_bindings: true, ..Default::default() };
        naga::back::msl::write_string(&module, &info, &msl, &Default::default())
            .unwrap_or_else(|e| panic!("{key:?}: MSL: {e}"));
        if is_device(key.units()) {
            continue;
        }
        let hlsl = naga::back::hlsl::Options {
            shader_model: naga::back::hlsl::ShaderModel::V6_2,
            immediates_target: Some(naga::back::hlsl::BindTarget::default()),
            ..Default::default()
        };
        let pipeline = Default::default();
        let mut text = String::new();
        naga::back::hlsl::Writer::new(&mut text, &hlsl, &pipeline)
            .write(&module, &info, None)
            .unwrap_or_else(|e| panic!("{key:?}: HLSL: {e}"));
    }
}

#[test]
fn params_of_wgsl_are_those_of_rust() {
    for (key, space) in forms() {
        let (module, _) = parsed(&key, space);
        let (wanted, binding) = match space {
            ParamSpace::Uniform => (naga::AddressSpace::Uniform, Some(naga::ResourceBinding { group: 0, binding: 0 })),
            ParamSpace::Immediate => (naga::AddressSpace::Immediate, None),
        };
        let is_params = |space| matches!(space, naga::AddressSpace::Uniform | naga::AddressSpace::Immediate);
        let all: Vec<_> = module.global_variables.iter().map(|(_, v)| v).filter(|v| is_params(v.space)).collect();
        let [params] = all[..] else { panic!("{key:?} has {} blocks of parameters", all.len()) };
        assert_eq!((params.space, &params.binding), (wanted, &binding), "{key:?}");
        let naga::TypeInner::Struct { members, .. } = &module.types[params.ty].inner else { panic!("{key:?}") };
        let names: Vec<&str> = members.iter().map(|m| m.name.as_deref().unwrap()).collect();
        assert_eq!(names, key.params(), "{key:?}");
        for (i, member) in members.iter().enumerate() {
            assert_eq!(member.offset, 4 * i as u32, "{key:?}");
        }
    }
}

#[test]
fn bindings_and_workgroups_are_those_of_rust_and_portable() {
    for (key, space) in forms() {
        let (module, _) = parsed(&key, space);
        let mut storage: Vec<(u32, Access)> = module
            .global_variables
            .iter()
            .filter_map(|(_, v)| match v.space {
                naga::AddressSpace::Storage { access } => {
                    let write = access.contains(naga::StorageAccess::STORE);
                    Some((v.binding.as_ref()?.binding, if write { Access::ReadWrite } else { Access::Read }))
                }
                _ => None,
            })
            .collect();
        storage.sort_by_key(|(binding, _)| *binding);
        let wanted: Vec<(u32, Access)> = (1..).zip(key.bindings()).collect();
        assert_eq!(storage, wanted, "{key:?}");
        assert!(storage.len() <= DeviceCaps::PORTABLE.max_storage_buffers as usize, "{key:?}");

        let size = module.entry_points[0].workgroup_size;
        assert_eq!(size, [key.workgroup_size(), 1, 1], "{key:?}");
        // what has matrix units has large workgroups too
        let most = if is_device(key.units()) { 1024 } else { DeviceCaps::PORTABLE.max_invocations };
        assert!(size[0] <= most, "{key:?}");
        let shared = module.global_variables.iter().filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
        let bytes: u32 = shared.map(|(_, v)| module.types[v.ty].inner.size(module.to_ctx())).sum();
        let claimed = key.workgroup_bytes().max(DeviceCaps::PORTABLE.workgroup_bytes as usize);
        assert!(bytes as usize <= claimed, "{key:?}: {bytes} bytes");
        assert!(key.source(space).starts_with("//"), "{key:?} has no header");
    }
}

/// Browsers compile with tint, which is stricter than naga about uniform control flow and constants. They have no
/// immediates.
#[test]
fn g03_no_kernel_adds_by_atomics() {
    for key in catalogue() {
        // a note that any invocation may leave does not depend on their order
        let source = key.source(ParamSpace::Uniform);
        let source =
            ["atomicStore(", "atomicLoad(", "atomic<u32>"].iter().fold(source, |s, known| s.replace(known, ""));
        assert!(!source.contains("atomic"), "{key:?}");
    }
}

#[test]
fn every_key_passes_tint_where_it_is_installed() {
    if std::process::Command::new("tint").arg("--help").output().is_err() {
        eprintln!("skipped: tint is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (path, written) = (dir.path().join("key.wgsl"), dir.path().join("written.wgsl"));
    for key in catalogue().into_iter().filter(|key| !is_device(key.units()) && !is_wide(key)) {
        std::fs::write(&path, key.source(ParamSpace::Uniform)).unwrap();
        let out = std::process::Command::new("tint")
            .args(["--format", "wgsl", "-o"])
            .args([&written, &path])
            .output()
            .unwrap();
        assert!(out.status.success(), "{key:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn parameters_are_in_immediates_where_all_of_them_fit() {
    for key in catalogue() {
        let bytes = key.params().len() as u32 * 4;
        let space = |immediate_bytes| key.param_space(&DeviceCaps { immediate_bytes, ..DeviceCaps::PORTABLE });
        assert_eq!(key.param_space(&DeviceCaps::PORTABLE), ParamSpace::Uniform, "{key:?}");
        assert_eq!([space(bytes - 4), space(bytes)], SPACES, "{key:?}");
    }
}

pub(super) fn small(max_binding_bytes: u64) -> DeviceCaps {
    DeviceCaps { max_binding_bytes, f16: true, ..DeviceCaps::PORTABLE }
}

/// What any list of launches must satisfy: aligned windows within the limit, words as the kernel names them.
pub(super) fn check(launches: &[Launch<usize>], caps: &DeviceCaps) {
    for launch in launches {
        assert_eq!(launch.params.len(), launch.key.params().len(), "{launch:?}");
        assert_eq!(launch.operands.len(), launch.key.bindings().len(), "{launch:?}");
        assert_eq!(u64::from(launch.params[0]), launch.groups, "{launch:?}");
        assert!(launch.groups > 0, "{launch:?}");
        assert!(launch.estimate.bytes > 0.0, "{launch:?}");
        for operand in &launch.operands {
            assert!(operand.bytes > 0 && operand.bytes <= caps.max_binding_bytes, "{launch:?}");
            assert_eq!(operand.offset % caps.storage_align, 0, "{launch:?}");
        }
    }
}

/// The windows of an operand cover it from 0 to its end without a gap.
fn covers(launches: &[Launch<usize>], operand: usize, bytes: u64) {
    let mut windows: Vec<(u64, u64)> = launches
        .iter()
        .flat_map(|l| &l.operands)
        .filter(|o| o.tensor == operand)
        .map(|o| (o.offset, o.bytes))
        .collect();
    windows.sort_unstable();
    windows.dedup();
    let mut end = 0;
    for (offset, bytes) in windows {
        assert_eq!(offset, end);
        end += bytes;
    }
    assert_eq!(end, bytes);
}

#[test]
fn launches_cover_their_tensors_under_small_limits() {
    for limit in [4096, 65_536, 1 << 20] {
        let caps = small(limit);
        for dtype in [DType::F32, DType::F16] {
            let size = dtype.size();
            let soft = softmax::launches(dtype, false, 1000, 31, 1, &caps);
            if let Ok(soft) = soft {
                check(&soft, &caps);
                covers(&soft, 1, (1000 * 31 * size) as u64);
            } else {
                assert_eq!(limit, 4096);
            }
            let norm = norm::launches(norm::NormKind::AddLayer, dtype, 300, 256, 1e-5, 256, true, &caps).unwrap();
            check(&norm, &caps);
            covers(&norm, 5, (300 * 256 * size) as u64);
            covers(&norm, 6, 300 * 4);
            let rows = gather::embedding(dtype, DType::I32, 5000, 128, 777, &caps).unwrap();
            check(&rows, &caps);
            covers(&rows, 0, (5000 * 128 * size) as u64);
            covers(&rows, 2, (777 * 128 * size) as u64);
            let picked = gather::pick_row(dtype, 9, 100, 128, &caps).unwrap();
            check(&picked, &caps);
            covers(&picked, 0, (9 * 100 * 128 * size) as u64);
            let attrs = DropoutAttrs { p: 0.1.into(), site: 0 };
            let dropped = dropout::launches(dtype, &attrs, 99_997, false, &caps).unwrap();
            check(&dropped, &caps);
            covers(&dropped, 2, (100_000 * size) as u64);
            let constant = fill::constant(dtype, 1.0, 99_999, &caps).unwrap();
            check(&constant, &caps);
            covers(&constant, 0, (99_999 * size) as u64);
            let mask = fill::causal_mask(320, 64, &caps).unwrap();
            check(&mask, &caps);
            covers(&mask, 0, 320 * 64 * 4);
            let (sum, workspace) =
                reduce::launches(reduce::ReduceKind::Mean, dtype, [1, 100_000, 1], 0, &caps).unwrap();
            check(&sum, &caps);
            covers(&sum, 0, (100_000 * size) as u64);
            covers(&sum, 2, workspace.unwrap() as u64);
        }
    }
}

#[test]
fn sums_of_parts_follow_each_other() {
    let caps = small(1 << 20);
    let sums = |first, count| sum_parts::Sums { first, count };
    let one = sum_parts::launch(3, DType::F16, sums(1024, 600), None, &caps).unwrap();
    check(std::slice::from_ref(&one), &caps);
    assert_eq!(one.params, [3, 3, 150, 0]);
    let odd = sum_parts::launch(2, DType::F32, sums(65, 129), Some(sums(3, 70)), &caps).unwrap();
    check(std::slice::from_ref(&odd), &caps);
    assert_eq!(odd.params, [5, 2, 129, 1, 3, 70, 3]);
    let error = sum_parts::launch(9, DType::F32, sums(0, 200), None, &small(4096)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "sum_parts: operand 0: all parts wants a binding of 7200 bytes, but the device's limit is 4096; \
         use a smaller size or another adapter"
    );
}

#[test]
fn launches_of_training_cover_their_tensors_under_small_limits() {
    let adam = AdamAttrs {
        beta1: 0.9.into(),
        beta2: 0.999.into(),
        eps: 1e-8.into(),
        weight_decay: 0.0.into(),
        decoupled: false,
        narrow: false,
    };
    let loss = CrossEntropyAttrs { axis: 1, ignore_index: None, label_smoothing: 0.0.into() };
    for limit in [65_536, 1 << 20] {
        let caps = small(limit);
        for dtype in [DType::F32, DType::F16] {
            let size = dtype.size();
            let rows_bytes = |rows: usize, width: usize| (rows * width * size) as u64;
            let found = magnitude::launches(&[(dtype, 70_001), (DType::F32, 9), (dtype, 40_000)], &caps).unwrap();
            check(&found.0, &caps);
            covers(&found.0, 0, rows_bytes(17_501, 4));
            covers(&found.0, 2, rows_bytes(40_000, 1));
            covers(&found.0, 3, 4);
            for in_place in [false, true] {
                let step = adam::launches(&adam, dtype, [50_000, 3], in_place, &caps).unwrap();
                check(&step, &caps);
                covers(&step, 0, 200_000);
                covers(&step, 3, rows_bytes(50_000, 1));
                let sizes = [1000, 32, 4];
                let grad = cross_entropy_grad::launches(&loss, dtype, sizes, in_place, &caps).unwrap();
                check(&grad, &caps);
                covers(&grad, 4, rows_bytes(4000, 32));
            }
            for sizes in [[1000, 100, 1], [64, 65, 8]] {
                let losses = cross_entropy::launches(&loss, dtype, sizes, &caps).unwrap();
                check(&losses, &caps);
                covers(&losses, 0, rows_bytes(sizes[0] * sizes[1], sizes[2]));
                covers(&losses, 3, (4 * sizes[0] * sizes[2]) as u64);
            }
            let soft = softmax_grad::launches(dtype, true, 1000, 128, 1, &caps).unwrap();
            check(&soft, &caps);
            covers(&soft, 2, rows_bytes(1000, 128));
            for rms in [false, true] {
                let inputs = if rms { 3 } else { 4 };
                let rows = norm_grad::launches([rms, false], dtype, 3000, 128, &caps).unwrap();
                check(&rows, &caps);
                covers(&rows, inputs + 1, rows_bytes(3000, 128));
                let (sums, workspace) = norm_param_grad::launches(rms, dtype, 3000, 64, &caps).unwrap();
                check(&sums, &caps);
                covers(&sums, inputs - 1, rows_bytes(3000, 64));
                covers(&sums, inputs, rows_bytes(64, 1));
                covers(&sums, if rms { 4 } else { 6 }, workspace as u64);
            }
            let added = scatter::launches(dtype, DType::I32, 5000, 128, 777, &caps).unwrap();
            check(&added, &caps);
            covers(&added, 0, rows_bytes(777, 128));
            covers(&added, 2, rows_bytes(5000, 128));
        }
    }
}

#[test]
fn a_gradient_of_attention_binds_eight_buffers_and_takes_tiles_of_portable_size() {
    use attention_grad::{AttentionGrad, Side};
    let dropout = Some(DropoutAttrs { p: 0.1.into(), site: 3 });
    let caps = small(1 << 27);
    for d in [1, 8, 12, 16, 36, 64, 100, 128] {
        for (sq, sk) in [(1, 1), (1, 257), (257, 1), (33, 130)] {
            let scale = 1.0.into();
            let attrs = AttentionAttrs { heads: 3, scale, causal: true, mask: true, lengths: true, dropout };
            let rows = |n: usize| View { offset: 0, dims: vec![2, n, 3 * d], strides: vec![n * 3 * d, 3 * d, 1] };
            let (q, k) = (rows(sq), rows(sk));
            let mask = View { offset: 0, dims: vec![2, 3, sq, sk], strides: vec![0, 0, sk, 1] };
            let dtype = DType::F32;
            let stats = attention_stats::AttentionStats { attrs, dtype, out: &q, dout: &q, sk };
            let stats = stats.launches(&caps).unwrap();
            check(&stats, &caps);
            for side in [Side::Keys, Side::Queries] {
                let results = &[Some((0, q.clone())), Some((1, k.clone())), Some((2, k.clone()))];
                let grad = AttentionGrad {
                    attrs,
                    dtype,
                    q: &q,
                    k: &k,
                    v: &k,
                    dout: &q,
                    mask: Some(&mask),
                    results,
                    units: None,
                };
                let launches = grad.launches(side, &caps).unwrap();
                check(&launches, &caps);
                let KernelKey::AttentionGrad(key) = &launches[0].key else { panic!("{launches:?}") };
                assert!(key.tiles.is_some() && key.bindings().len() <= 8, "{key:?}");
                assert!(key.workgroup_bytes() <= 16 << 10, "{key:?}");
            }
        }
    }
}

#[test]
fn what_a_device_cannot_do_is_an_error_with_sizes() {
    let error = softmax::launches(DType::F32, false, 3, 2048, 1, &small(4096)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "softmax: operand 0: one row wants a binding of 8192 bytes, but the device's limit is 4096; \
         use a smaller size or another adapter"
    );
    let error = softmax::launches(DType::F32, false, 70, 1028, 1, &small(40_000)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "softmax: operand 0: the least aligned window, 16 rows of 4112 bytes, wants a binding of 65792 bytes, \
         but the device's limit is 40000; use a smaller size or another adapter"
    );
    let error = softmax::launches(DType::F16, false, 3, 2048, 1, &DeviceCaps::PORTABLE).unwrap_err();
    assert_eq!(error.to_string(), "softmax: element type f16, expected f32: the device has no f16");
    let few = DeviceCaps { workgroup_bytes: 64, ..DeviceCaps::PORTABLE };
    let error = softmax::launches(DType::F32, false, 3, 2048, 1, &few).unwrap_err();
    assert_eq!(
        error.to_string(),
        "softmax: a workgroup takes 2176 bytes of workgroup memory, but the device's limit is 64; use another adapter"
    );
    let error = gather::embedding(DType::F32, DType::I32, 0, 4, 1, &DeviceCaps::PORTABLE).unwrap_err();
    assert_eq!(error.to_string(), "gather: rows of the table is 0, expected at least 1, since rows of it are wanted");
}

proptest! {
    #[test]
    fn windows_are_aligned_within_the_limit_and_cover_all_rows(
        rows in 0usize..5000,
        row_bytes in prop::collection::vec(0u64..3000, 1..4),
        limit in 1u64..2_000_000,
        align in prop::sample::select(vec![1u64, 16, 32, 64, 256]),
    ) {
        let caps = DeviceCaps { storage_align: align, ..small(limit) };
        match split_rows(rows, &row_bytes, &caps) {
            Some(ranges) => {
                let mut next = 0;
                for r in &ranges {
                    prop_assert!(r.start == next && r.end > r.start);
                    next = r.end;
                    for b in &row_bytes {
                        prop_assert!(r.len() as u64 * b <= limit);
                        prop_assert_eq!(r.start as u64 * b % align, 0);
                    }
                }
                prop_assert_eq!(next, rows);
            }
            None => {
                // the fewest aligned rows do not fit
                let step = (1..=align).find(|s| row_bytes.iter().all(|b| s * b % align == 0)).unwrap();
                prop_assert!(row_bytes.iter().any(|b| step * b > limit));
            }
        }
    }
}
