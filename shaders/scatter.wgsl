// Gradient of a table's rows: table[r] += the sum of dy[t] over all t with index[t] = r.
// A workgroup belongs to one t and {{ columns }} neighbouring columns{{ " of four" if vec }}. The one whose t is the first of its index does the
// whole row; the others stop. No two write the same, and rows that no index names are not touched.
// Each lane marks in one word which of 32 neighbouring indices are the row's; then the words are gone through, line l
// of {{ lines }} taking words l, l + LINES, ….
// Order of a sum: the marks of a word in turn, words of a chunk in turn, chunks in turn, then lines in turn.
// The table may be a window of rows: an index outside it contributes nothing.
{% if f16 %}
enable f16;
{% endif %}
{% set T = "vec4<f32>" if vec else "f32" %}

struct Params {
    groups: u32,
    count: u32, // indices
    width: u32, // in what one invocation sums
    blocks: u32, // workgroups of a t
    first: u32, // of the indices
    window: u32,
    window_rows: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> dy: array<{{ stored }}>;
@group(0) @binding(2) var<storage, read> indices: array<vec4<{{ index }}>>;
@group(0) @binding(3) var<storage, read_write> table: array<{{ stored }}>;

const COLUMNS: u32 = {{ columns }}u;
const LINES: u32 = {{ lines }}u;
const SIZE: u32 = COLUMNS * LINES;
const CHUNK: u32 = SIZE * 32u;

{% include "shared/group.wgsl" %}

var<workgroup> marks: array<u32, {{ columns * lines }}>;
var<workgroup> tile: array<{{ T }}, {{ columns * lines }}>;
var<workgroup> stop: u32;

// Bit k tells whether index `begin` + k is `row`; positions count from a multiple of 4 at or before the first index.
fn marked(begin: u32, low: u32, high: u32, row: {{ index }}) -> u32 {
    var word = 0u;
    for (var k = 0u; k < 8u; k++) {
        if begin + 4u * k < high {
            let bits = select(vec4(0u), vec4(1u, 2u, 4u, 8u), indices[begin / 4u + k] == vec4(row));
            word |= ((bits.x | bits.y) | (bits.z | bits.w)) << (4u * k);
        }
    }
    // those before the first index and after the last are another's
    if low > begin {
        word &= 0xffffffffu << min(low - begin, 31u);
    }
    if high < begin + 32u {
        word &= (1u << (high - min(begin, high))) - 1u;
    }
    return word;
}

@compute @workgroup_size({{ columns * lines }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, grid);
    if group >= p.groups {
        return;
    }
    let own = p.first + group / p.blocks;
    let row = indices[own / 4u][own % 4u];
    if {{ "row < 0 || " if index == "i32" }}u32(row) < p.window || u32(row) - p.window >= p.window_rows {
        return;
    }
    let column = group % p.blocks * COLUMNS + lane % COLUMNS;
    let line = lane / COLUMNS;
    let high = p.first + p.count;
    var found = false;
    var total = {{ T }}(0.0);
    for (var start = p.first / 4u * 4u; start < high; start += CHUNK) {
        marks[lane] = marked(start + 32u * lane, p.first, high, row);
        workgroupBarrier();
        let words = min((high - start + 31u) / 32u, SIZE);
        var first = own;
        for (var w = 0u; w < words && !found; w++) {
            if marks[w] != 0u {
                first = start + 32u * w + firstTrailingBit(marks[w]);
                found = true;
            }
        }
        if first == own && found && column < p.width {
            var chunk = {{ T }}(0.0);
            for (var w = line; w < words; w += LINES) {
                var word = marks[w];
                let base = start + 32u * w - p.first;
                var sum = {{ T }}(0.0);
                while word != 0u {
                    // two at a time, so that two reads are under way
                    let a = firstTrailingBit(word);
                    word &= word - 1u;
                    let both = word != 0u;
                    let b = select(a, firstTrailingBit(word), both);
                    word &= word - 1u;
                    let one = {{ T }}(dy[(base + a) * p.width + column]);
                    let other = {{ T }}(dy[(base + b) * p.width + column]);
                    sum = (sum + one) + select({{ T }}(0.0), other, both);
                }
                chunk += sum;
            }
            total += chunk;
        }
        if lane == 0u {
            stop = u32(first != own);
        }
        if workgroupUniformLoad(&stop) != 0u {
            return;
        }
    }
{% if lines > 1 %}
    tile[lane] = total;
    workgroupBarrier();
    for (var k = 1u; k < LINES && line == 0u; k++) {
        total += tile[lane + k * COLUMNS];
    }
{% endif %}
    if line == 0u && column < p.width {
        let at = (u32(row) - p.window) * p.width + column;
        table[at] = {{ stored }}({{ T }}(table[at]) + total);
    }
}
