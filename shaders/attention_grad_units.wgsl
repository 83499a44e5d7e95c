{% from "shared/units.wgsl" import enable, array, read, zero, load, store, times, meet, put_halves %}
{% from "shared/attend_units.wgsl" import hold, fetch, largest_of, stage, within, column, own_scale, own_matrices, multiply, sum_up, give, each_row, mine, most, functions %}
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
{# distances between rows, in vec4s: of staged rows, products, weights #}
{% set at_row = width // 4 + 2 %}
{% set at_product = pair_columns // 4 + 2 %}
{% set at_weight = pair_columns // 4 + 2 %}
{% set fours = pair_columns // 4 // sharers %}
{# lanes that share one of the own rows #}
{% set own_sharers = u.lanes // rows if rows < u.lanes else 1 %}
{% set tile_rows = rows if rows > pair_rows else pair_rows %}
{% set results = [["dv", 1], ["dk", 0]] if keys else [["dq", 0]] %}
const LOG2_E: f32 = 1.44269504;

{% for half in u.halves %}
{% for name in theirs %}
{{ array(name ~ "_" ~ half, "f16", block * at_row, u) }}
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
var<workgroup> key_factors: array<vec4<f32>, {{ key_count // 4 }}>;
var<workgroup> value_factors: array<vec4<f32>, {{ key_count // 4 }}>;
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

{# what becomes of a row once its largest magnitudes are known #}
{% macro note(side_keys, at, first, second, query) %}
{% if side_keys %}
                    key_factors[({{ at }}) / 4u][({{ at }}) % 4u] = row_factor({{ first }});
                    value_factors[({{ at }}) / 4u][({{ at }}) % 4u] = row_factor({{ second }});
{% else %}
                    queries[{{ at }}] = vec4<f32>(row_factor({{ first }}) * p.scale, row_factor({{ second }}), pair_of(b, h, {{ query }}));
{% endif %}
{% endmacro %}
{% macro stage_block() %}
{% if s.scaled %}
{{ largest_of(theirs, s) }}
            let r = id / {{ s.share }}u;
            {{ within(0, s) }}{
{% for name in theirs %}
{% set which = loop.index0 %}
                let scale_{{ which }} = row_scale(largest_{{ which }});
{% for c in range(s.held) %}
{{ put_halves(name, "r * " ~ at_row ~ "u + " ~ column(c, s), "scaled(" ~ name ~ "_" ~ c ~ ", scale_" ~ which ~ ")", u) }}
{% endfor %}
{% endfor %}
                if id % {{ s.share }}u == 0u {
{{ note(not keys, "r", "largest_0", "largest_1", "at_block + r") }}
                }
            }
{% else %}
{{ stage(theirs, "at_block + 1u", s, u) }}
{% endif %}
{% endmacro %}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    for (var go = group < p.groups; go; go = false) {
    let heads = p.groups / p.blocks;
    let bh = group % heads;
{% if keys %}
    let first = group / heads * {{ subs * rows }}u;
{% else %}
    let first = (p.blocks - 1u - group / heads) * {{ subs * rows }}u;
{% endif %}
    let b = bh / p.heads;
    let h = bh % p.heads;
    let l = lane % {{ u.lanes }}u;
    let sub = lane / {{ u.lanes }}u;
    let own = first + sub * {{ rows }}u;
    let at_scores = sub * {{ tile_rows * at_product }}u;
    let at_weights = sub * {{ tile_rows * at_weight }}u;
    let valid = valid_keys(b);
{% for name in ["q", "k", "v", "dout"] %}
    let at_{{ name }} = p.{{ name }}_offset + b * p.{{ name }}_batch + h * p.{{ name }}_head;
{% endfor %}
{% if dropout %}
    let stream = stream_of(b, h);
{% endif %}
{% if keys %}
    let start = first_query(first, valid);
    let end = p.sq;
    let own_start = first_query(own, valid);
    let own_end = select(0u, end, own < {{ own_rows }});
{% else %}
    let start = 0u;
    let end = u32(max(end_of_keys(min(first + {{ subs * rows - 1 }}u, p.sq - 1u), valid), 0));
    let own_start = 0u;
    let own_end = select(0u, u32(max(end_of_keys(min(own + {{ rows - 1 }}u, p.sq - 1u), valid), 0)), own < {{ own_rows }});
{% endif %}
{% if not s.scaled %}
    for (var i = lane; i < {{ block }}u; i += {{ threads }}u) {
        atomicStore(&broken[i], 0u);
    }
    if lane == 0u {
        atomicStore(&odd, 0u);
    }
    workgroupBarrier();
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
{% for c in range(parts) %}
{% for t in range(tiles) %}
    var {{ name }}{{ t }}_{{ c }} = {{ zero(u) }};
{% endfor %}
{% endfor %}
{% endfor %}
    // exponents of the largest number that was multiplied for each result
{% for name, _ in results %}
{% if s.scaled or name != "dv" %}
    var level_{{ name }} = 15u;
{% endif %}
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
{% if ahead %}
        {
            let id = lane;
{{ stage_block() }}
        }
        workgroupBarrier();
        // a branch: without, compilers move reads to where they are needed
        if at_block + {{ block }}u < end {
            let id = lane;
            let from_row = at_block + {{ block }}u;
{{ fetch(theirs, index, s) }}
        }
{% else %}
        for (var id = lane; id < {{ block * s.share }}u; id += {{ threads }}u) {
            let from_row = at_block;
{{ fetch(theirs, index, s) }}
{{ stage_block() }}
        }
        workgroupBarrier();
{% endif %}
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
{% for q in range(pair_rows // u.side) %}
{% for k in range(pair_columns // u.side) %}
            {{ store("sg"[which] ~ q ~ "_" ~ k, "scores", "at_scores + " ~ (q * u.side * at_product + k * u.side // 4) ~ "u", at_product ~ "u", u) }}
{% endfor %}
{% endfor %}
            {{ meet(u) }}
{{ each_row(pair_rows, u) }}
                let at = at_scores + row * {{ at_product }}u{{ " + l % " ~ sharers ~ "u" if sharers > 1 }};
{% for i in range(fours) %}
                {{ "wg"[which] }}[r * {{ fours }}u + {{ i }}u] = {{ read("scores", "f32", "at + " ~ i * sharers ~ "u", u) }};
{% endfor %}
            }
            {{ meet(u) }}
{% endfor %}
{% for name, _ in results %}
            var largest_{{ name }} = 0u;
            var for_{{ name }}: array<vec4<f32>, {{ own * fours }}>;
{% endfor %}
{{ each_row(pair_rows, u) }}
{% if s.scaled %}
                let query = queries[at_queries + row];
{% else %}
                let query = vec4<f32>(0.0, 0.0, pairs[{{ "t + row" if keys else "r" }}]);
{% endif %}
                let lse = query.z;
                let delta = query.w;
{% for i in range(fours) %}
                {
                    let e = r * {{ fours }}u + {{ i }}u;
                    let column = {{ mine(i, pair_rows, u) }};
                    var score = w[e];
                    var dw = g[e];
{% if s.scaled %}
                    let key_factor = key_factors[at_keys + column];
                    score *= key_factor * query.x;
                    dw *= value_factors[at_keys + column] * query.y;
{% else %}
                    score *= p.scale;
{% endif %}
                    var hidden = vec4<bool>(false);
                    if hides{{ " || strange" if not s.scaled }} {
                        let i = min(queries_from + row, p.sq - 1u);
                        let j = keys_from + column * 4u;
                        let seen = select(0, end_of_keys(i, valid), queries_from + row < p.sq);
                        let at_m = {% if mask %}p.m_offset + b * p.m_batch + i * p.m_row + h * p.m_head{% else %}0u{% endif %};
{% if not s.scaled %}
{% for e in range(4) %}
                        if strange && atomicLoad(&broken[t + {{ "row" if keys else "column * 4u + " ~ e ~ "u" }}]) == at_block + 1u {
                            score.{{ "xyzw"[e] }} = bitcast<f32>(0x7fc00000u | p.stats_offset);
                        }
{% endfor %}
{% endif %}
                        score = vec4<f32>({% for c in range(4) %}masked(score.{{ "xyzw"[c] }}, at_m, j + {{ c }}u, seen){{ ", " if c < 3 }}{% endfor %});
                        hidden = score <= vec4<f32>(HIDDEN);
                        dw = select(dw, vec4<f32>(delta), hidden);
                    }
                    let weight = select(exp2((score - lse) * LOG2_E), vec4<f32>(0.0), hidden);
{% if dropout %}
                    let z = kept(weights_of(b, min(queries_from + row, p.sq - 1u)) + keys_from + column * 4u, stream);
                    dw *= z;
{% endif %}
{% if s.scaled %}
                    // whatever the others hold, a weight of 0 has no gradient
                    let nothing = weight == vec4<f32>(0.0);
{% else %}
                    let nothing = hidden;
{% endif %}
                    let of_score = weight * (dw - delta);
{% if keys %}
{% if s.scaled %}
                    for_dv[e] = select(weight{{ " * z" if dropout }} * query.y, vec4<f32>(0.0), nothing);
                    for_dk[e] = select(of_score * query.x, vec4<f32>(0.0), nothing);
{% else %}
                    for_dv[e] = {% if dropout %}select(weight * 4096.0, vec4<f32>(0.0), z == vec4<f32>(0.0)){% else %}weight * 4096.0{% endif %};
                    for_dk[e] = select(of_score, vec4<f32>(0.0), nothing);
{% endif %}
{% else %}
                    for_dq[e] = select(of_score{{ " * key_factor" if s.scaled }}, vec4<f32>(0.0), nothing);
{% endif %}
{% for name, _ in results %}
{% if s.scaled or name != "dv" %}
                    largest_{{ name }} = max(largest_{{ name }}, finite(for_{{ name }}[e]));
{% endif %}
{% endfor %}
                }
{% endfor %}
            }
{% for name, _ in results %}
{% if s.scaled or name != "dv" %}
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
{% endif %}
{% endfor %}
{% for name, their in results %}
{{ each_row(pair_rows, u) }}
{% for i in range(fours) %}
{{ put_halves("weights", "at_weights + row * " ~ at_weight ~ "u + " ~ mine(i, pair_rows, u), "for_" ~ name ~ "[r * " ~ fours ~ "u + " ~ i ~ "u]" ~ (" * scale_" ~ name if s.scaled or name != "dv" else ""), u) }}
{% endfor %}
            }
            {{ meet(u) }}
{% for t in range(tiles) %}
{% for run in range(runs) %}
{% for half in u.halves %}
{% set at = (run * u.side * at_weight + t * u.side // 4) if keys else (t * u.side * at_weight + run * u.side // 4) %}
            {{ load(name ~ "w" ~ t ~ "_" ~ run ~ "_" ~ half, "A", "weights_" ~ half, "at_weights + " ~ at ~ "u", at_weight ~ "u", not keys, u) }}
{% endfor %}
{% endfor %}
{% endfor %}
{% if not loop.last %}
            {{ meet(u) }}
{% endif %}
{{ sum_up(name, name ~ "w", theirs[their], tiles, runs, s, u) }}
{% endfor %}
        }
        workgroupBarrier();
    }
{% for name, _ in results %}
{% if s.scaled or name != "dv" %}
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
