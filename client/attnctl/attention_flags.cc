#include "client/attnctl/attention_flags.h"

#include <functional>

namespace attnd::client::attnctl {

void AddAttentionFlags(CLI::App& command, v1::AttentionOptions& options, bool for_sequences) {
  command.add_option_function<float>(
      "--softmax_scale", [&options](float value) { options.set_softmax_scale(value); },
      "multiplies q.k (default 1 / sqrt(head_dim))");
  command.add_option_function<std::int32_t>(
      "--window_left", [&options](std::int32_t value) { options.set_window_left(value); },
      "earlier keys that stay visible (default all)");
  command.add_option_function<float>(
      "--logits_soft_cap", [&options](float value) { options.set_logits_soft_cap(value); },
      "scores become cap x tanh(score / cap) (default off)");
  command
      .add_option_function<std::vector<float>>(
          "--alibi_slopes",
          [&options](const std::vector<float>& values) {
            options.mutable_alibi_slopes()->Assign(values.begin(), values.end());
          },
          "one a query head, separated by commas")
      ->delimiter(',');
  command
      .add_option_function<std::vector<float>>(
          "--sink_logits",
          [&options](const std::vector<float>& values) {
            options.mutable_sink_logits()->Assign(values.begin(), values.end());
          },
          "one a query head, separated by commas")
      ->delimiter(',');
  if (for_sequences) return;
  command.add_option_function<std::int32_t>(
      "--window_right", [&options](std::int32_t value) { options.set_window_right(value); },
      "later keys that stay visible (default all)");
  command.add_flag_callback(
      "--causal", [&options] { options.set_causal(true); },
      "a query sees the keys up to its own place, aligned at the end");
}

void AddExecutionFlags(CLI::App& command, v1::ExecutionOptions& execution) {
  command
      .add_option_function<std::string>(
          "--algorithm",
          [&execution](const std::string& name) {
            execution.set_algorithm(name == "naive"   ? v1::ALGORITHM_NAIVE
                                    : name == "fused" ? v1::ALGORITHM_FUSED
                                                      : v1::ALGORITHM_AUTO);
          },
          "auto, fused or naive (default auto)")
      ->check(CLI::IsMember({"auto", "fused", "naive"}));
  command.add_flag_callback(
      "--alone", [&execution] { execution.set_alone(true); }, "never batched with other requests");
  command
      .add_option_function<std::int32_t>(
          "--priority", [&execution](std::int32_t value) { execution.set_priority(value); },
          "-100 to 100; negative ones may wait (default 0)")
      ->check(CLI::Range(-100, 100));
}

}  // namespace attnd::client::attnctl
