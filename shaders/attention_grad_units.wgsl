{% from "shared/units.wgsl" import enable, array, read, times, meet, put_halves %}
{% from "shared/attend_place.wgsl" import place, addresses, other_side %}
{% from "shared/attend_block.wgsl" import clear_notes, hold, fetch, stage, next_block, functions %}
{% from "shared/attend_grad_factors.wgsl" import note, stage_scaled %}
{% from "shared/attend_rows.wgsl" import each_row, mine, most, own_scale, own_matrices, give %}
{% from "shared/attend_products.wgsl" import sums, multiply, put_products, take_weights, sum_up %}
{% if keys %}
// dv = (w · z)ᵀ dout and dk = scale · gᵀ q, with w = e^(q kᵀ · scale + mask - log-sum-exp) the weights, z what dropout
{% else %}
// dq = scale · g k, with w = e^(q kᵀ · scale + mask - log-sum-exp) the weights, z what dropout
{% endif %}
// multiplies them with, g = w · (z · (dout vᵀ) - delta) the gradient of the scores and delta the sums of dout · out:
// without scores in memory (Dao, arXiv 2307.08691, section 2.3.2), on units that multiply f16 matrices.
//
// A workgroup of {{ subs }} subgroups has {{ subs * rows }} {{ "keys" if keys else "queries" }} of one head and walks over blocks of {{ block }} {{ "queries" if keys else "keys" }}, which it stages as f16
// rows{{ " scaled by powers of two" if s.scaled }}{{ ", each element as a high and a low part" if split }}. A subgroup has {{ rows }} of the {{ "keys" if keys else "queries" }} in registers and goes through a
// block {{ step }} at a time: scores, then gradients of weights by the units into workgroup memory, where each lane takes its
// part of a query's; what it makes of them goes back there, to be multiplied with the staged rows.
//
{% if s.scaled %}
// Of what is summed, a row's factor goes into its weights; their largest so far in the subgroup gives the power of two
// by which all of them are scaled and sums are kept.
{% else %}
// The largest gradient of a score so far in the subgroup gives the power of two by which all are scaled and sums are
// kept. Weights are at most 1, but for rounding.
{% endif %}
// A row of a result is summed over {{ "queries" if keys else "keys" }} in order.
{{ enable(u) }}
enable f16;
{% include "shared/attend_grad.wgsl" %}

{% if s.scaled %}
{% include "shared/halves.wgsl" %}
{% endif %}
{{ functions(s) }}

{% set parts = width // u.side %}
{% set tiles = rows // u.side %}
{% set runs = step // u.side %}
{# a subgroup's pairs: queries by keys #}
{% set pair_rows = step if keys else rows %}
{% set pair_columns = rows if keys else step %}
{# lanes that share a query, and queries of a lane #}
{% set sharers = u.lanes // pair_rows if pair_rows < u.lanes else 1 %}
{% set own = pair_rows * sharers // u.lanes %}
{# distances between rows, in vec4s: of products, weights #}
{% set at_product = pair_columns // 4 + 2 %}
{% set at_weight = pair_columns // 4 + 2 %}
{% set fours = pair_columns // 4 // sharers %}
{# lanes that share one of the own rows #}
{% set own_sharers = u.lanes // rows if rows < u.lanes else 1 %}
{% set tile_rows = rows if rows > pair_rows else pair_rows %}
{# results, each with the number of what its weights are multiplied with, and those whose weights have a level #}
{% set results = [["dv", 1], ["dk", 0]] if keys else [["dq", 0]] %}
{% set levels = (["dv", "dk"] if s.scaled else ["dk"]) if keys else ["dq"] %}
const LOG2_E: f32 = 1.44269504;

{% for half in u.halves %}
{% for name in theirs %}
{{ array(name ~ "_" ~ half, "f16", block * (width // 4 + 2), u) }}
{% endfor %}
{{ array("weights_" ~ half, "f16", subs * tile_rows * at_weight, u) }}
{% endfor %}
{{ array("scores", "f32", subs * tile_rows * at_product, u) }}
{% set queries = block if keys else subs * rows %}
{% set key_count = subs * rows if keys else block %}
{% if s.scaled %}
// of each query: what undoes the scale of q, times that of scores, and of dout, log-sum-exp and delta
var<workgroup> queries: array<vec4<f32>, {{ queries }}>;
// what undoes the scale of each key and value
var<workgroup> key_factors: array<f32, {{ key_count }}>;
var<workgroup> value_factors: array<f32, {{ key_count }}>;
{% else %}
{% if keys %}
// log-sum-exp and delta of each query
var<workgroup> pairs: array<vec2<f32>, {{ queries }}>;
{% endif %}
// one more than the first row of the last block that has a row with an infinity or a NaN, and of the last one that has it in
// this place
var<workgroup> odd: atomic<u32>;
var<workgroup> broken: array<atomic<u32>, {{ block }}>;
{% endif %}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    for (var go = group < p.groups; go; go = false) {
{{ place(subs * rows, keys) }}
    let l = lane % {{ u.lanes }}u;
    let sub = lane / {{ u.lanes }}u;
    let own = first + sub * {{ rows }}u;
    let at_scores = sub * {{ tile_rows * at_product }}u;
    let at_weights = sub * {{ tile_rows * at_weight }}u;
    let valid = valid_keys(b);
{{ addresses(reads) }}
{% if dropout %}
    let stream = stream_of(b, h);
{% endif %}
{{ other_side(subs * rows, keys) }}
    // what the subgroup's own rows need of it
{% if keys %}
    let own_start = first_query(own, valid);
    let own_end = select(0u, end, own < {{ own_rows }});
{% else %}
    let own_start = 0u;
    let own_end = select(0u, u32(max(end_of_keys(min(own + {{ rows - 1 }}u, p.sq - 1u), valid), 0)), own < {{ own_rows }});
{% endif %}
{% if not s.scaled %}
{{ clear_notes(s) }}
{% endif %}
    // the workgroup's own rows
{% if s.scaled %}
{% for name in ours %}
    var {{ name }}_scale: array<f32, {{ rows * own_sharers // u.lanes }}>;
{% endfor %}
{{ each_row(rows, u) }}
{% for name in ours %}
{{ own_scale(name, rows, own_rows, s, u) }}
{% endfor %}
        if {{ "l % " ~ own_sharers ~ "u == 0u" if own_sharers > 1 else "true" }} {
{{ note(keys, "sub * " ~ rows ~ "u + row", "largest_" ~ ours[0], "largest_" ~ ours[1], "own + row") }}
        }
    }
{% elif not keys %}
    var pairs: array<vec2<f32>, {{ own }}>;
{{ each_row(pair_rows, u) }}
        pairs[r] = pair_of(b, h, own + row);
    }
{% endif %}
{% for name in ours %}
{{ own_matrices(name, rows, own_rows, "B" if keys else "A", at_weight, s, u) }}
{% endfor %}
{% for name, _ in results %}
{{ sums(name, tiles, s, u) }}
{% endfor %}
    // exponents of the largest number that was multiplied for each result
{% for name in levels %}
    var level_{{ name }} = 15u;
{% endfor %}
{{ hold(theirs, s) }}
{% set index = "min(from_row + $r, end - 1u)" %}
{% if ahead %}
    if start < end {
        let id = lane;
        let from_row = start;
{{ fetch(theirs, index, s) }}
    }
{% endif %}
    for (var at_block = start; at_block < end; at_block += {{ block }}u) {
{% if keys and not s.scaled %}
        for (var i = lane; i < {{ block }}u; i += {{ threads }}u) {
            pairs[i] = pair_of(b, h, at_block + i);
        }
{% endif %}
{{ next_block(theirs, stage_scaled(theirs, keys, s, u) if s.scaled else stage(theirs, "at_block + 1u", s, u), index, "from_row", "at_block + " ~ block ~ "u", "end", s) }}
{% if not s.scaled %}
        let strange = atomicLoad(&odd) == at_block + 1u;
{% endif %}
        // not the same for all subgroups: each leaves out where no key of it is seen
        let behind = select(0u, own_start - at_block, own_start > at_block);
        for (var t = behind / {{ step }}u * {{ step }}u; t < {{ block }}u && at_block + t < own_end; t += {{ step }}u) {
{% if keys %}
            let queries_from = at_block + t;
            let keys_from = own;
            let at_queries = t;
            let at_keys = sub * {{ rows // 4 }}u;
{% else %}
            let queries_from = own;
            let keys_from = at_block + t;
            let at_queries = sub * {{ rows }}u;
            let at_keys = t / 4u;
{% endif %}
            // whether some query does not see some key of these
            let hides = {{ "true" if mask else "queries_from + " ~ pair_rows ~ "u > p.sq || i32(keys_from + " ~ pair_columns ~ "u) > end_of_keys(queries_from, valid)" }};
            var w: array<vec4<f32>, {{ own * fours }}>;
            var g: array<vec4<f32>, {{ own * fours }}>;
{% for name in theirs %}
{% set which = loop.index0 %}
{% set our = ours[loop.index0] %}
{{ multiply("sg"[which], our, name, tiles, runs, keys, s, u) }}
{{ put_products("sg"[which], pair_rows // u.side, pair_columns // u.side, at_product, u) }}
            {{ meet(u) }}
{{ each_row(pair_rows, u) }}
                let at = at_scores + row * {{ at_product }}u{{ " + l % " ~ sharers ~ "u" if sharers > 1 }};
{% for i in range(fours) %}
                {{ "wg"[which] }}[r * {{ fours }}u + {{ i }}u] = {{ read("scores", "f32", "at + " ~ i * sharers ~ "u", u) }};
{% endfor %}
            }
            {{ meet(u) }}
{% endfor %}
{% include "shared/attend_grad_pairs.wgsl" %}
{% for name in levels %}
            let new_{{ name }} = max(level_{{ name }}, {{ most("largest_" ~ name, u) }} >> 23u);
            // a loop, since naga takes a condition for one that differs between lanes
            for (var rise = new_{{ name }} > level_{{ name }}; rise; rise = false) {
                let down = bitcast<f32>(select((level_{{ name }} + 127u - new_{{ name }}) << 23u, 0u, new_{{ name }} - level_{{ name }} > 126u));
{% for t in range(tiles) %}
{% for c in range(parts) %}
                {{ times(name ~ t ~ "_" ~ c, "down", u) }}
{% endfor %}
{% endfor %}
                level_{{ name }} = new_{{ name }};
            }
            let scale_{{ name }} = bitcast<f32>((268u - level_{{ name }}) << 23u);
{% endfor %}
{% for name, their in results %}
{{ each_row(pair_rows, u) }}
{% for i in range(fours) %}
{{ put_halves("weights", "at_weights + row * " ~ at_weight ~ "u + " ~ mine(i, pair_rows, u), "for_" ~ name ~ "[r * " ~ fours ~ "u + " ~ i ~ "u]" ~ (" * scale_" ~ name if name in levels else ""), u) }}
{% endfor %}
            }
            {{ meet(u) }}
{{ take_weights(name ~ "w", tiles, runs, keys, at_weight, u) }}
{% if not loop.last %}
            {{ meet(u) }}
{% endif %}
{{ sum_up(name, name ~ "w", theirs[their], tiles, runs, s, u) }}
{% endfor %}
        }
        workgroupBarrier();
    }
{% for name, _ in results %}
{% if name in levels %}
    let undo_{{ name }} = bitcast<f32>((level_{{ name }} - 14u) << 23u){{ " * p.scale" if not keys or not s.scaled }};
{% else %}
    let undo_{{ name }} = {{ "p.keep / 4096.0" if dropout else "1.0 / 4096.0" }};
{% endif %}
{{ give(name, rows, own_rows, "dv" if name == "dv" else "o", "undo_" ~ name, at_product, s, u) }}
{% endfor %}
    }
}

// The bits of the largest magnitude of those that are finite.
fn finite(x: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    let known = select(bits, vec4<u32>(0u), bits >= vec4<u32>(0x7f800000u));
    return max(max(known.x, known.y), max(known.z, known.w));
}
