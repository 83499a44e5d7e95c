//! Launches of products: how results, sums and slices are covered, and when a product is sliced.

use super::Matmul;
use crate::caps::{DeviceCaps, MatrixUnits};
use crate::graph::{Chain, DType, Shape};
use crate::kernel::tests::{check, small};
use crate::kernel::units::Units;
use crate::kernel::{Config, Launch, View};

/// (rows, columns) of a matrix, stored the other way if `turned`.
fn matrix(rows: usize, columns: usize, turned: bool) -> View {
    let view = |dims: [usize; 2]| View::dense(&Shape::from(dims.to_vec()));
    if turned { view([columns, rows]).permute(&[1, 0]) } else { view([rows, columns]) }
}

/// The value of a launch's parameter.
fn param(launch: &Launch<usize>, name: &str) -> Option<usize> {
    let at = launch.key.params().iter().position(|n| n == name)?;
    Some(launch.params[at] as usize)
}

#[test]
fn products_in_every_layout_cover_their_results_under_small_limits() {
    let identity = Chain::identity();
    for (turned, [m, k, n]) in (0..4).flat_map(|t| [[33, 31, 257], [300, 64, 256], [1, 7, 5]].map(|size| (t, size))) {
        let (a, b) = (matrix(m, k, turned & 1 > 0), matrix(k, n, turned & 2 > 0));
        let (c, row_sums) = (matrix(m, n, false), View::dense(&Shape::from(vec![m])));
        for (limit, cpu, dtype) in
            [(1 << 20, false, DType::F32), (1 << 20, true, DType::F16), (128 << 10, false, DType::F32)]
        {
            let caps = DeviceCaps { cpu, ..small(limit) };
            // rows of A are summed where they are neighbours
            let sums = (turned & 1 > 0).then_some(&row_sums);
            let product = Matmul {
                dtype,
                out: dtype,
                a: &a,
                b: &b,
                c: &c,
                epilogue: &identity,
                extras: &[],
                in_place: None,
                slice: None,
                sums,
                units: None,
            };
            let launches = product.launches(&caps).unwrap();
            check(&launches, &caps);
            let made: usize = launches.iter().map(|l| param(l, "m").unwrap() * param(l, "n").unwrap()).sum();
            assert_eq!(made, m * n, "{launches:?}");
            // the sums are made once for each row, by whoever makes its first columns
            let summed: usize =
                launches.iter().filter(|l| param(l, "sums_offset").is_some()).map(|l| param(l, "m").unwrap()).sum();
            assert_eq!(summed, if sums.is_some() { m } else { 0 }, "{launches:?}");
            let wanted = if cpu { "matmul_direct" } else { "matmul" };
            assert!(launches.iter().all(|l| l.key.name() == wanted));
            let flops: f64 = launches.iter().map(|l| l.estimate.flops).sum();
            assert_eq!(flops, 2.0 * (m * n * k) as f64);
        }
    }
}

#[test]
fn slices_of_a_product_cover_its_inner_dimension() {
    let identity = Chain::identity();
    let [m, k, n] = [48, 1000, 40];
    let (a, b) = (matrix(m, k, true), matrix(k, n, false));
    for (slice, limit) in [(128, 1 << 20), (320, 1 << 20), (64, 100 << 10), (32, 64 << 10)] {
        let slices = k.div_ceil(slice);
        let (c, sums) = (View::dense(&Shape::from(vec![slices, m, n])), View::dense(&Shape::from(vec![slices, m])));
        for cpu in [false, true] {
            let caps = DeviceCaps { cpu, ..small(limit) };
            let product = Matmul {
                dtype: DType::F32,
                out: DType::F32,
                a: &a,
                b: &b,
                c: &c,
                epilogue: &identity,
                extras: &[],
                in_place: None,
                slice: Some(slice),
                sums: Some(&sums),
                units: None,
            };
            let launches = product.launches(&caps).unwrap();
            check(&launches, &caps);
            let mut inner = 0;
            for launch in &launches {
                let [slices, k, tail] = ["batch0", "k", "tail"].map(|name| param(launch, name).unwrap());
                assert_eq!(k, slice);
                inner += (slices - 1) * k + tail;
                // no window reaches past the end of what it looks into
                for (operand, width) in launch.operands.iter().zip([m, n]) {
                    assert!(operand.offset + operand.bytes <= (1000 * width * 4) as u64, "{launch:?}");
                }
            }
            assert_eq!(inner, k);
            let flops: f64 = launches.iter().map(|l| l.estimate.flops).sum();
            assert_eq!(flops, 2.0 * (m * n * k) as f64);
        }
    }
}

#[test]
fn products_of_few_tiles_or_beyond_a_binding_are_sliced() {
    let large = DeviceCaps { max_binding_bytes: 1 << 31, workgroup_bytes: 48 << 10, max_invocations: 1024, ..small(0) };
    let slice = |m: usize, k: usize, n: usize, caps: &DeviceCaps| {
        let (a, b) = (matrix(m, k, true), matrix(k, n, false));
        let own = Matmul::slice(&a, &b, DType::F32, None, caps);
        // what is tuned must know it
        let all = Matmul::slices(&a, &b, DType::F32, None, caps);
        assert_eq!(all[0], Config::Slice(own.unwrap_or(0)));
        assert!(all[1..].iter().all(|other| *other != all[0]), "{all:?}");
        own
    };
    // weight gradients of 2048 rows: few tiles, as many as cores, many more
    for (m, n) in [(256, 256), (768, 768), (65, 768), (1, 10)] {
        let slice = slice(m, 2048, n, &large).unwrap_or_else(|| panic!("({m}, {n}) is whole"));
        assert!(slice >= 128 && slice % 32 == 0 && slice <= 1024, "({m}, {n}): {slice}");
    }
    assert_eq!(slice(8192, 2048, 8192, &large), None);
    assert_eq!(slice(3072, 64, 768, &large), None);
    assert_eq!(slice(256, 2048, 256, &DeviceCaps { cpu: true, ..large.clone() }), None);
    // on units, whose products take less time than the second launch unless nearly all cores are idle
    let on_units = |m: usize, k: usize, n: usize, split: bool| {
        let units = MatrixUnits::Device { side: 16, lanes: 32 };
        let (a, b) = (matrix(m, k, true), matrix(k, n, false));
        Matmul::slice(&a, &b, DType::F32, Some(Units { units, split }), &large)
    };
    for split in [false, true] {
        assert_eq!(on_units(3072, 2048, 768, split), None);
        assert_eq!(on_units(768, 2048, 3072, split), None);
        let slice = on_units(256, 2048, 256, split).unwrap_or_else(|| panic!("{split}: whole"));
        assert!((128..=1024).contains(&slice) && slice % 32 == 0, "{split}: {slice}");
    }
    // more slices than a binding asks for do not pay
    assert_eq!(slice(2048, 32_768, 2048, &DeviceCaps { max_binding_bytes: 128 << 20, ..large.clone() }), Some(16_352));
    // rows of 2 KiB, of which a binding of 64 KiB less alignment covers 31
    let few = DeviceCaps { cpu: true, ..small(64 << 10) };
    assert_eq!(slice(8, 100, 512, &few), Some(31));
    assert_eq!(slice(8, 31, 512, &few), None);
    assert_eq!(slice(8, 1000, 512, &DeviceCaps { cpu: true, ..small(1 << 20) }), Some(480));
}
