"""Names by which vLLM knows what is ours in its workers (`transfer`), for both sides."""

BACKEND = "eventrain_file"
EXTENSION = "eventrain.adapters.vllm.transfer.UpdateExtension"
