// Rows of a table by index: out[r] = table[min(index[r], bound - 1)], a negative index counting as 0.
// Row r of a batch may have a part of its own: part · (entry + r) is added to the index (0 for an embedding).
// One invocation moves one {{ "group of four words" if vec else "word" }}. The table may be a window of rows: a row outside it is left to another launch.
{% if elem == "f16" %}
enable f16;
{% endif %}

struct Params {
    groups: u32,
    count: u32,
    width: u32,
    bound: u32,
    part: u32,
    first: u32,
    entry: u32,
    window: u32,
    window_rows: u32,
}
{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read> table: array<{{ stored }}>;
@group(0) @binding(2) var<storage, read> indices: array<{{ index }}>;
@group(0) @binding(3) var<storage, read_write> rows: array<{{ stored }}>;

const SIZE: u32 = {{ size }}u;

{% include "shared/group.wgsl" %}

{% include "shared/main.wgsl" %}
    let at = group * SIZE + index; // of (count, width)
    let r = at / p.width;
    if r >= p.count {
        return;
    }
{% if index == "i32" %}
    let wanted = u32(max(indices[p.first + r], 0));
{% else %}
    let wanted = indices[p.first + r];
{% endif %}
    let row = p.part * (p.entry + r) + min(wanted, p.bound - 1u);
    if row < p.window || row - p.window >= p.window_rows {
        return;
    }
    rows[at] = table[(row - p.window) * p.width + at % p.width];
}
