//! The zoo: model YAML to graph, blocks, heads, parameter names, weights in and out
