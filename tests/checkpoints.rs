//! Malformed and well-formed safetensors files. A test named `wNN_…` stands for the bug report of that id.

use half::{bf16, f16};
use kiln::graph::{DType, ParamLayout};
use kiln::model::{Checkpoint, CheckpointError, HeaderFault, ParamSource};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::Write;
use tempfile::TempDir;

/// Notes the largest allocation of each thread, so that a refusal can be shown to allocate nothing of a claimed size.
struct Watched;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; the cell is a plain number without a destructor.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.with(|l| l.set(l.get().max(layout.size())));
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// A folder that goes away, with files in it.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Files(TempDir::new().unwrap())
    }

    fn bytes(&self, bytes: &[u8]) -> std::path::PathBuf {
        let path = self.0.path().join("model.safetensors");
        fs::write(&path, bytes).unwrap();
        path
    }

    fn file(&self, header: &str, data: &[u8]) -> std::path::PathBuf {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        self.bytes(&bytes)
    }
}

/// The text of the error without the folder; opening must have allocated little.
fn refusal(path: &std::path::Path) -> String {
    LARGEST.with(|l| l.set(0));
    let error = Checkpoint::open(path).err().expect("a malformed file is refused");
    let largest = LARGEST.with(Cell::get);
    assert!(largest < 1 << 16, "allocated {largest} bytes at once");
    let folder = format!("{}/", path.parent().unwrap().display());
    error.to_string().replace(&folder, "").replace('\\', "/")
}

fn refused(header: &str, data: &[u8]) -> String {
    refusal(&Files::new().file(header, data))
}

fn layout(dtype: DType, parameters: &[(&str, &[usize])]) -> ParamLayout {
    let mut layout = ParamLayout::default();
    for (name, dims) in parameters {
        layout.add(name, dtype, (*dims).into());
    }
    layout
}

#[test]
fn w01_offsets_that_do_not_span_the_shape() {
    let header = r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}}"#;
    let text =
        "model.safetensors: the header is not valid:\n  tensor \"a\": F32 (2, 3) takes 24 bytes, data_offsets span ";
    assert_eq!(refused(header, &[0; 20]), format!("{text}20"));
    assert_eq!(refused(&header.replace("20", "28"), &[0; 28]), format!("{text}28"));
    let all =
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F16","shape":[],"data_offsets":[4,8]}}"#;
    assert_eq!(
        refused(all, &[0; 8]),
        "model.safetensors: the header is not valid:\n  tensor \"a\": F32 (2) takes 8 bytes, data_offsets span 4\n  \
         tensor \"b\": F16 () takes 2 bytes, data_offsets span 4"
    );
}

#[test]
fn w01_shapes_whose_size_overflows() {
    let header = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#;
    assert_eq!(
        refused(header, &[]),
        "model.safetensors: the header is not valid:\n  tensor \"a\": F32 (4294967296, 4294967296) takes more than 2^64 bits"
    );
}

#[test]
fn w02_begin_after_end_and_end_past_the_file() {
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[16,8]}}"#;
    assert_eq!(
        refused(header, &[0; 16]),
        "model.safetensors: the header is not valid:\n  tensor \"a\": data_offsets are [16, 8], expected begin ≤ end"
    );
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    assert_eq!(
        refused(header, &[0; 5]),
        "model.safetensors: the header is not valid:\n  tensor \"a\": data_offsets end at 8, the file holds 5 bytes of data"
    );
    let header = r#"{"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}}"#;
    assert!(refused(header, &[]).contains("data_offsets end at 18446744073709551615, the file holds 0 bytes of data"));
}

#[test]
fn w02_gaps_overlaps_and_what_trails() {
    let two = |offsets: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}}}"#
        )
    };
    let follow = "tensors follow each other without gap or overlap";
    for (offsets, begin) in [("[5,9]", 5), ("[3,7]", 3)] {
        assert!(
            refused(&two(offsets), &[0; 9]).contains(&format!("tensor \"b\": begins at {begin}, expected 4: {follow}"))
        );
    }
    assert_eq!(
        refused(&two("[4,8]"), &[0; 9]),
        "model.safetensors: the header is not valid:\n  the tensors end at 8, the file holds 9 bytes of data"
    );
}

/// The most that a header may have, and what the error says beside.
const TOO_LONG: &str = "100000000; this is no safetensors file, which has that length in its first 8 bytes, or a \
                        damaged one: save the tensors as safetensors";

#[test]
fn w03_header_lengths_that_cannot_be() {
    let files = Files::new();
    for n in 0..8 {
        assert_eq!(
            refusal(&files.bytes(&vec![1; n])),
            format!(
                "model.safetensors: a safetensors file starts with the header's length in 8 bytes, got {n} bytes in all"
            )
        );
    }
    let mut bytes = u64::MAX.to_le_bytes().to_vec();
    assert_eq!(
        refusal(&files.bytes(&bytes)),
        format!("model.safetensors: header length is 18446744073709551615 bytes, expected at most {TOO_LONG}")
    );
    assert_eq!(
        refusal(&files.bytes(b"{\"model\": \"gptlite\"}")),
        format!("model.safetensors: header length is 2480468976814858875 bytes, expected at most {TOO_LONG}")
    );
    bytes = 100u64.to_le_bytes().to_vec();
    bytes.extend_from_slice(b"{}");
    assert_eq!(
        refusal(&files.bytes(&bytes)),
        "model.safetensors: header length is 100 bytes, got 10 bytes in all with the 8 of the length"
    );
    assert!(refusal(&files.bytes(&0u64.to_le_bytes())).contains("EOF while parsing"));
}

#[test]
fn w03_headers_that_are_not_tensors_by_name() {
    let cases = [
        ("\u{0}", "expected value at line 1 column 1"),
        ("[]", "invalid type: sequence, expected an object of tensors by name at line 1 column 0"),
        (r#"{"a":3}"#, "invalid type: integer `3`, expected struct Entry at line 1 column 6"),
        (r#"{"a":{"dtype":"F32","shape":[]}}"#, "missing field `data_offsets` at line 1 column 31"),
        (
            r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
            "invalid value: integer `-1`, expected usize at line 1 column 31",
        ),
    ];
    for (header, text) in cases {
        assert_eq!(
            refused(header, &[0; 4]),
            format!(
                "model.safetensors: the header is not valid:\n  expected a JSON object of {{dtype, shape, data_offsets}} by tensor name: {text}"
            )
        );
    }
    let deep = "[".repeat(10_000);
    assert!(refused(&format!(r#"{{"__metadata__":{deep}"#), &[]).contains("EOF while parsing a list"));
    let twice =
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}"#;
    assert!(refused(twice, &[0]).contains("tensor \"a\": declared twice, names are unique"));
}

#[test]
fn w04_a_header_over_the_formats_limit() {
    let files = Files::new();
    for (header, text) in [
        (100_000_001u64, format!("header length is 100000001 bytes, expected at most {TOO_LONG}")),
        (100_000_000, "header length is 100000000 bytes, got 8 bytes in all with the 8 of the length".into()),
    ] {
        let path = files.bytes(&header.to_le_bytes());
        if header > 100_000_000 {
            // sparse: the header is there in full, so that its size alone is the reason
            File::options().write(true).open(&path).unwrap().set_len(8 + header).unwrap();
        }
        assert_eq!(refusal(&path), format!("model.safetensors: {text}"));
    }
}

#[test]
fn w07_unknown_dtype_skips_no_other_check() {
    let header = r#"{"a":{"dtype":"F33","shape":[2],"data_offsets":[0,99]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#;
    assert_eq!(
        refused(header, &[0; 8]),
        "model.safetensors: the header is not valid:\n  tensor \"a\": data_offsets end at 99, the file holds 8 bytes of data\n  \
         tensor \"a\": dtype \"F33\" is unknown, expected one of the format's, as F32, F16, BF16 or F64\n  \
         tensor \"b\": F32 (2) takes 8 bytes, data_offsets span 4"
    );
}

#[test]
fn w07_a_known_dtype_that_does_not_convert() {
    let files = Files::new();
    let path = files.file(r#"{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#, &[0; 8]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let text = "\"a\": cannot convert I64 to f32; F64, F32, F16 and BF16 convert to f32 and f16";
    let tensor = checkpoint.tensor("a", DType::F32).unwrap_err();
    assert_eq!(tensor.to_string(), format!("{}: {text}", path.display()));
    let Err(load) = checkpoint.load(&layout(DType::F32, &[("a", &[1])])) else { panic!("an I64 is no parameter") };
    assert_eq!(load.to_string(), format!("{}: does not fit the model:\n  {text}", path.display()));
}

/// One tensor of a dtype, read as f32 and as f16.
fn read(dtype: &str, size: usize, data: &[u8]) -> (Vec<f32>, Vec<u16>) {
    let (n, end) = (data.len() / size, data.len());
    let header = format!(r#"{{"a":{{"dtype":"{dtype}","shape":[{n}],"data_offsets":[0,{end}]}}}}"#);
    let files = Files::new();
    let checkpoint = Checkpoint::open(files.file(&header, data)).unwrap();
    let full = checkpoint.tensor("a", DType::F32).unwrap().to_f32();
    let half = checkpoint.tensor("a", DType::F16).unwrap();
    (full, half.bytes().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect())
}

#[test]
fn w12_every_f16_is_exact() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let data: Vec<u8> = all.iter().flat_map(|b| b.to_le_bytes()).collect();
    let (full, half) = read("F16", 2, &data);
    assert_eq!(half, all);
    for (&bits, &got) in all.iter().zip(&full) {
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let expected = match exponent {
            0 => sign * fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => sign * f64::INFINITY,
            31 => f64::NAN,
            _ => sign * (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
        };
        assert!(f64::from(got) == expected || got.is_nan() && expected.is_nan(), "{bits:#06x}: {got}, not {expected}");
        assert_eq!(got.is_sign_negative(), bits >> 15 == 1);
    }
    assert_eq!((full[0x0001], full[0x7C00]), (5.960_464_5e-8, f32::INFINITY));
}

#[test]
fn w12_every_bf16_is_exact() {
    let data: Vec<u8> = (0..=u16::MAX).flat_map(|b| b.to_le_bytes()).collect();
    let (full, half) = read("BF16", 2, &data);
    assert_eq!((full[0x3F80], full[0x7F80]), (1.0, f32::INFINITY));
    for bits in 0..=u16::MAX {
        let (got, expected) = (full[bits as usize], f32::from_bits(u32::from(bits) << 16));
        assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{bits:#06x}");
        let rounded = f16::from_bits(half[bits as usize]);
        assert!(rounded == f16::from_f32(expected) || rounded.is_nan() && expected.is_nan(), "{bits:#06x}");
    }
    assert_eq!(bf16::from_f32(full[0x0001]).to_bits(), 1);
}

#[test]
fn w12_f32_and_f64_round_once() {
    let bits = [0u32, 0x8000_0000, 1, 0x7F80_0000, 0xFF80_0000, 0x3F80_0000, 0x7F7F_FFFF, 0x7FC0_1234];
    let data: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
    let (full, half) = read("F32", 4, &data);
    assert_eq!(full.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), bits);
    assert_eq!(half[..7], [0, 0x8000, 0, 0x7C00, 0xFC00, 0x3C00, 0x7C00]);
    assert!(f16::from_bits(half[7]).is_nan());

    // just above the middle of two f16: by way of the nearest f32 it would become a tie and go down
    let middle = 1.0 + 2f64.powi(-11);
    let above = middle + 2f64.powi(-40);
    let below = middle + 2f64.powi(-10) - 2f64.powi(-40);
    let least = 2f64.powi(-24);
    let values = [middle, above, -above, below, 0.1, 1e300, -1e300, f64::INFINITY, 65519.999, 65520.0, least / 2.0];
    let values = [&values[..], &[least / 2.0 + 1e-20, 1e-320, f64::NAN, -0.0]].concat();
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let (full, half) = read("F64", 8, &data);
    for (&value, &got) in values.iter().zip(&full) {
        assert!(got.to_bits() == (value as f32).to_bits() || got.is_nan() && value.is_nan(), "{value}: {got}");
    }
    assert_eq!(half[..8], [0x3C00, 0x3C01, 0xBC01, 0x3C01, 0x2E66, 0x7C00, 0xFC00, 0x7C00]);
    assert_eq!(half[8..13], [0x7BFF, 0x7C00, 0, 1, 0]);
    assert!(f16::from_bits(half[13]).is_nan() && half[14] == 0x8000);
}

#[test]
fn tril_buffers_are_skipped_and_unused_names_listed() {
    let header = concat!(
        r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"#,
        r#""blocks.0.sa.heads.0.tril":{"dtype":"BOOL","shape":[2,2],"data_offsets":[8,12]},"#,
        r#""tril":{"dtype":"F32","shape":[1],"data_offsets":[12,16]},"#,
        r#""not_a_tril":{"dtype":"F32","shape":[],"data_offsets":[16,20]}}"#
    );
    let mut data = vec![0; 20];
    data[..8].copy_from_slice(&[1.5f32, -2.0].map(f32::to_le_bytes).concat());
    let files = Files::new();
    let checkpoint = Checkpoint::open(files.file(header, &data)).unwrap();
    let loaded = checkpoint.load(&layout(DType::F16, &[("w", &[2])])).unwrap();
    assert_eq!(loaded.skipped, ["blocks.0.sa.heads.0.tril", "tril"]);
    assert_eq!(loaded.unused, ["not_a_tril"]);
    assert_eq!(loaded.tensors().keys().collect::<Vec<_>>(), ["w"]);
    assert!(loaded.tensor("tril").is_none() && ParamSource::get(&loaded, "not_a_tril").is_none());
    let w = ParamSource::get(&loaded, "w").unwrap();
    assert_eq!((w.dtype(), w.to_f32()), (DType::F16, vec![1.5, -2.0]));
    assert_eq!(ParamSource::get(&checkpoint, "w").unwrap().dtype(), DType::F32);
    assert_eq!(ParamSource::get(&loaded.tensors(), "w").unwrap().to_f32(), [1.5, -2.0]);
}

#[test]
fn a_large_buffer_that_is_skipped_is_not_copied() {
    let header = concat!(
        r#"{"h.tril":{"dtype":"F32","shape":[2048,2048],"data_offsets":[0,16777216]},"#,
        r#""w":{"dtype":"F32","shape":[1],"data_offsets":[16777216,16777220]}}"#
    );
    let files = Files::new();
    let path = files.file(header, &[]);
    let mut file = File::options().append(true).open(&path).unwrap();
    file.set_len(8 + header.len() as u64 + 16_777_216).unwrap();
    file.write_all(&3f32.to_le_bytes()).unwrap();
    LARGEST.with(|l| l.set(0));
    let checkpoint = Checkpoint::open(&path).unwrap();
    let loaded = checkpoint.load(&layout(DType::F32, &[("w", &[1])])).unwrap();
    assert_eq!(loaded.tensors()["w"].to_f32(), [3.0]);
    assert!(LARGEST.with(Cell::get) < 1 << 16);
}

#[test]
fn all_that_does_not_fit_is_listed() {
    let header = concat!(
        r#"{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"#,
        r#""b":{"dtype":"BOOL","shape":[2],"data_offsets":[8,10]},"#,
        r#""gamma":{"dtype":"F32","shape":[1],"data_offsets":[10,14]}}"#
    );
    let files = Files::new();
    let path = files.file(header, &[0; 14]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let wanted = layout(DType::F32, &[("a", &[2, 1]), ("b", &[2]), ("c", &[1]), ("d", &[])]);
    let Err(error) = checkpoint.load(&wanted) else { panic!("nothing fits") };
    let text = concat!(
        "does not fit the model:\n  \"a\": expected (2, 1), got (1, 2)\n",
        "  \"b\": cannot convert BOOL to f32; F64, F32, F16 and BF16 convert to f32 and f16\n",
        "  missing \"c\"\n  missing \"d\"\n  in the file but not in the model: gamma"
    );
    assert_eq!(error.to_string(), format!("{}: {text}", path.display()));
    let missing = checkpoint.tensor("e", DType::F32).unwrap_err();
    assert_eq!(missing.to_string(), format!("{}: missing \"e\"", path.display()));
}

#[test]
fn data_may_lie_at_any_address() {
    // three bytes before it: no element of `b` is aligned
    let header = concat!(
        r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"#,
        r#""b":{"dtype":"F32","shape":[2],"data_offsets":[3,11]},"e":{"dtype":"F32","shape":[0,4],"data_offsets":[11,11]}}"#
    );
    let data = [&[9; 3][..], &7f32.to_le_bytes(), &(-0.5f32).to_le_bytes()].concat();
    let files = Files::new();
    let checkpoint = Checkpoint::open(files.file(header, &data)).unwrap();
    assert_eq!(checkpoint.tensor("b", DType::F32).unwrap().to_f32(), [7.0, -0.5]);
    assert!(checkpoint.tensor("e", DType::F32).unwrap().to_f32().is_empty());
}

#[test]
fn a_packed_layout_is_loaded_by_the_parameters_own_names() {
    let header = concat!(
        r#"{"k":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"#,
        r#""q":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}}"#
    );
    let mut wanted = layout(DType::F32, &[]);
    let members = ["q", "k"].map(|n| wanted.add(n, DType::F32, [1, 2].into()));
    wanted.pack("qk", &members);
    let files = Files::new();
    let checkpoint = Checkpoint::open(files.file(header, &[0; 16])).unwrap();
    assert_eq!(checkpoint.load(&wanted).unwrap().tensors().keys().collect::<Vec<_>>(), ["k", "q"]);
    // nor does a copy in another type take its original's place
    wanted.copy(members[0], DType::F16);
    assert_eq!(checkpoint.load(&wanted).unwrap().tensors()["q"].dtype(), DType::F32);
}

#[test]
fn types_are_those_of_what_is_given() {
    let header = concat!(
        r#"{"half":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"#,
        r#""long":{"dtype":"I64","shape":[1],"data_offsets":[4,12]},"#,
        r#""double":{"dtype":"F64","shape":[1,1],"data_offsets":[12,20]}}"#
    );
    let files = Files::new();
    let checkpoint = Checkpoint::open(files.file(header, &[0; 20])).unwrap();
    let loaded = checkpoint.load(&layout(DType::F16, &[("half", &[2]), ("double", &[1, 1])])).unwrap();
    for source in [&checkpoint as &dyn ParamSource, &loaded] {
        for name in ["half", "long", "double", "none"] {
            assert_eq!(source.ty(name).as_ref(), source.get(name).as_ref().map(|t| t.ty()), "{name}");
        }
    }
    assert_eq!((checkpoint.ty("long"), loaded.ty("double").unwrap().dtype), (None, DType::F16));
}

#[test]
fn what_is_no_file_is_an_error() {
    let folder = TempDir::new().unwrap();
    for path in [folder.path().join("none"), folder.path().to_owned()] {
        let Err(error) = Checkpoint::open(&path) else { panic!("{} was opened", path.display()) };
        assert!(matches!(error, CheckpointError::Io { .. }));
        assert!(error.to_string().starts_with(&path.display().to_string()));
    }
}

#[test]
fn a_fault_that_only_the_formats_own_reader_knows() {
    // three elements of four bits end within a byte
    let header = r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#;
    let Err(CheckpointError::Header { faults, .. }) = Checkpoint::open(Files::new().file(header, &[0])) else {
        panic!("half a byte is no tensor")
    };
    assert!(matches!(faults[..], [HeaderFault::Other(_)]));
}
