package realengine

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
)

// oddBodies are requests at the edges of what JSON and vLLM's readers allow.
var oddBodies = []struct{ name, path, body string }{
	{"duplicate keys", "/v1/completions", `{"model":"tiny","prompt":"one","prompt":"two words"}`},
	{"duplicate keys inside", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a","content":"b c"}]}`},
	{"escaped key", "/v1/completions", `{"model":"tiny","pro\u006dpt":"one two"}`},
	{"surrogate pair", "/v1/completions", `{"model":"tiny","prompt":"a \ud83d\ude42 b"}`},
	{"lone surrogate", "/v1/completions", `{"model":"tiny","prompt":"a \ud83d b"}`},
	{"lone surrogate in chat", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a \udc00 b"}]}`},
	{"escapes", "/v1/completions", `{"model":"tiny","prompt":"\u0000\u001f\/\b\f\n\r\t\"\\"}`},
	{"numbers as text", "/v1/completions", `{"model":"tiny","prompt":"a b c d e f","truncate_prompt_tokens":"3"}`},
	{"whole float", "/v1/completions", `{"model":"tiny","prompt":"a b c d e f","truncate_prompt_tokens":3.0}`},
	{"truncate 0", "/v1/completions", `{"model":"tiny","prompt":"a b c","truncate_prompt_tokens":0}`},
	{"truncate -1", "/v1/completions", `{"model":"tiny","prompt":"a b c","truncate_prompt_tokens":-1}`},
	{"truncate null", "/v1/completions", `{"model":"tiny","prompt":"a b c","truncate_prompt_tokens":null}`},
	{"truncate chat right", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a b c d"}],"truncate_prompt_tokens":4,"truncation_side":"right"}`},
	{"truncate ids right", "/v1/completions", `{"model":"tiny","prompt":[1,2,3,4,5],"truncate_prompt_tokens":2,"truncation_side":"right"}`},
	{"truncate lists", "/v1/completions", `{"model":"tiny","prompt":[[1,2,3,4,5],[6,7]],"truncate_prompt_tokens":2}`},
	{"flags null", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"add_generation_prompt":null}`},
	{"flags as text", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"add_generation_prompt":"no"}`},
	{"flags as off", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"add_generation_prompt":"off"}`},
	{"flags as number", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"add_generation_prompt":0}`},
	{"flags as float", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"add_generation_prompt":0.0}`},
	{"flags in capitals", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"add_generation_prompt":"FALSE"}`},
	{"empty tools", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"tools":[]}`},
	{"tools null", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"tools":null}`},
	{"no messages", "/v1/chat/completions", `{"model":"tiny","messages":[]}`},
	{"one message as object", "/v1/chat/completions", `{"model":"tiny","messages":{"role":"user","content":"a"}}`},
	{"messages as text", "/v1/chat/completions", `{"model":"tiny","messages":"a"}`},
	{"content null", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":null}]}`},
	{"content absent", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user"}]}`},
	{"content as number", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":5}]}`},
	{"empty parts", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":[]}]}`},
	{"bare text part", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":["a","b"]}]}`},
	{"input_text part", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"text","text":"b"}]}]}`},
	{"part without type", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":[{"text":"a"}]}]}`},
	{"unknown part", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":[{"type":"zzz","text":"a"}]}]}`},
	{"refusal part", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},{"role":"user","content":"q"}]}`},
	{"thinking part", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"x"}]},{"role":"user","content":"q"}]}`},
	{"image", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}]}`},
	{"developer", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"developer","content":"be brief"},{"role":"user","content":"a"}]}`},
	{"unknown role", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"critic","content":"a"},{"role":"user","content":"b"}]}`},
	{"function role", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"b"},{"role":"function","name":"f","content":"r"}]}`},
	{"names", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","name":"Ann","content":"b"}]}`},
	{"arguments not JSON", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{broken"}}]},{"role":"tool","tool_call_id":"1","content":"r"}]}`},
	{"arguments empty", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":""}}]},{"role":"tool","tool_call_id":"1","content":"r"}]}`},
	{"arguments an object", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"a":1.50}}}]},{"role":"tool","tool_call_id":"1","content":"r"}]}`},
	{"arguments a list", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"[1,2]"}}]},{"role":"tool","tool_call_id":"1","content":"r"}]}`},
	{"arguments with odd numbers", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1e400,\"b\":12345678901234567890123,\"c\":1.0,\"d\":1e5,\"e\":-0.0,\"f\":1E-7,\"g\":NaN}"}}]},{"role":"tool","tool_call_id":"1","content":"r"}]}`},
	{"arguments with duplicate keys", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1,\"b\":2,\"a\":3}"}}]},{"role":"tool","tool_call_id":"1","content":"r"}]}`},
	{"no tool calls", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","tool_calls":[]},{"role":"user","content":"q"}]}`},
	{"extra fields of a message", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q","extra":{"a":1}}]}`},
	{"extra fields of a tool", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"tools":[{"type":"function","extra":1,"function":{"name":"f","more":[1],"parameters":{"type":"object"}}}]}`},
	{"order of a tool's fields", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"tools":[{"function":{"parameters":{"type":"object","properties":{}},"description":"d","name":"f"},"type":"function"}]}`},
	{"tool without parameters", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"tools":[{"type":"function","function":{"name":"f"}}]}`},
	{"tool fields null", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"tools":[{"type":"function","function":{"name":"f","description":null,"parameters":null,"strict":null}}]}`},
	{"tool numbers", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1e3,"b":1.10,"c":-0,"d":123456789012345678901234567890,"e":1e-7,"f":0.1e1,"g":1e22,"h":"\u00e9\u2028<>&"}}}]}`},
	{"tool_choice none", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"}`},
	{"tool_choice null", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":null}`},
	{"tool_choice without tools", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"tool_choice":"none"}`},
	{"kwargs null", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"chat_template_kwargs":null}`},
	{"kwargs that replace inputs", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"messages":[],"tools":[{"a":1}],"tokenize":true,"bos_token":"X"}}`},
	{"kwargs tools", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"tools":[{"a":1}]}}`},
	{"kwargs chat_template", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"chat_template":"x"}}`},
	{"kwargs null over effort", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":null}}`},
	{"effort none", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"reasoning_effort":"none"}`},
	{"thinking 0", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"enable_thinking":0}}`},
	{"continue with text parts", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"text","text":"so "},{"type":"text","text":"far "}]}],"continue_final_message":true,"add_generation_prompt":false}`},
	{"continue, generation default", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"so far"}],"continue_final_message":true}`},
	{"continue with blanks", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"  so far \n "}],"continue_final_message":true,"add_generation_prompt":false}`},
	{"continue the user", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"so far"}],"continue_final_message":true,"add_generation_prompt":false}`},
	{"continue, found twice", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"x"},{"role":"assistant","content":"x"}],"continue_final_message":true,"add_generation_prompt":false}`},
	{"special tokens asked", "/v1/completions", `{"model":"tiny","prompt":"a b","add_special_tokens":true}`},
	{"empty prompt", "/v1/completions", `{"model":"tiny","prompt":""}`},
	{"empty one of the texts", "/v1/completions", `{"model":"tiny","prompt":["","a b"]}`},
	{"text and ids", "/v1/completions", `{"model":"tiny","prompt":["a",[1,2]]}`},
	{"ids as floats", "/v1/completions", `{"model":"tiny","prompt":[1.0,2.0]}`},
	{"ids as text", "/v1/completions", `{"model":"tiny","prompt":[["1","2"]]}`},
	{"ids out of the vocabulary", "/v1/completions", `{"model":"tiny","prompt":[4095,99999999]}`},
	{"no model", "/v1/completions", `{"prompt":"a b"}`},
	{"NaN beside", "/v1/completions", `{"model":"tiny","prompt":"a b","x":NaN,"y":-Infinity}`},
	{"white space around", "/v1/completions", " \r\n\t{\"model\" : \"tiny\" ,\n\"prompt\":\t\"a b\"} \n"},
	{"byte order mark", "/v1/completions", "\ufeff{\"model\":\"tiny\",\"prompt\":\"a b\"}"},
	{"best_of", "/v1/completions", `{"model":"tiny","prompt":"a b","n":2,"best_of":2}`},
	{"prompt_token_ids in chat", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"kv_transfer_params":{"prompt_token_ids":[5,6,7]}}`},
	{"prompt_token_ids in a completion", "/v1/completions", `{"model":"tiny","prompt":"a b","kv_transfer_params":{"prompt_token_ids":[5,6,7]}}`},
	{"prompt_token_ids empty", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"kv_transfer_params":{"prompt_token_ids":[]}}`},
	{"prompt_token_ids truncated", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"truncate_prompt_tokens":2,"kv_transfer_params":{"prompt_token_ids":[5,6,7]}}`},
	{"documents odd", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"documents":[{"text":"a","n":"1"}]}`},
	{"both reasonings", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning":"one","reasoning_content":"two"},{"role":"tool","content":"x","tool_call_id":"1"}]}`},
	{"reasoning null", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning":null,"reasoning_content":"two"},{"role":"tool","content":"x","tool_call_id":"1"}]}`},
	{"reasoning empty", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"<think>x</think>a","reasoning":""},{"role":"tool","content":"x","tool_call_id":"1"}]}`},
	{"mid system", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"system","content":"s"},{"role":"user","content":"q2"}]}`},
	{"tool content null", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"},{"role":"tool","tool_call_id":"1","content":null}]}`},
	{"response format schema", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}}`},
	{"max_completion_tokens", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"q"}],"max_completion_tokens":5,"max_tokens":9}`},
	{"truncate to output room", "/v1/completions", `{"model":"tiny","prompt":"a b c","truncate_prompt_tokens":-1,"max_tokens":16382}`},
	{"suffix null", "/v1/completions", `{"model":"tiny","prompt":"a b c","suffix":null}`},
	{"suffix empty", "/v1/completions", `{"model":"tiny","prompt":"a b c","suffix":""}`},
	{"path with a query", "/v1/completions", `{"model":"tiny","prompt":"a b c","stream":true,"stream_options":{"include_usage":true}}`},
	{"messages: text", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`},
	{"messages: no max_tokens", "/v1/messages", `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`},
	{"messages: system blocks", "/v1/messages", `{"model":"tiny","max_tokens":5,"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}],"messages":[{"role":"user","content":"hi"}]}`},
	{"messages: empty system", "/v1/messages", `{"model":"tiny","max_tokens":5,"system":"","messages":[{"role":"user","content":"hi"}]}`},
	{"messages: billing header", "/v1/messages", `{"model":"tiny","max_tokens":5,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1; cch=abc;"},{"type":"text","text":"b"}],"messages":[{"role":"user","content":"hi"}]}`},
	{"messages: blocks", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`},
	{"messages: no blocks", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":[]}]}`},
	{"messages: system inside", "/v1/messages", `{"model":"tiny","max_tokens":5,"system":"s","messages":[{"role":"user","content":"hi"},{"role":"system","content":"more"},{"role":"user","content":"x"}]}`},
	{"messages: thinking", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"a"}]},{"role":"user","content":"q"}]}`},
	{"messages: redacted thinking", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"redacted_thinking","data":"x"},{"type":"text","text":"a"}]},{"role":"user","content":"q"}]}`},
	{"messages: thinking asked", "/v1/messages", `{"model":"tiny","max_tokens":5,"thinking":{"type":"enabled","budget_tokens":1024},"messages":[{"role":"user","content":"q"}]}`},
	{"messages: thinking refused", "/v1/messages", `{"model":"tiny","max_tokens":5,"thinking":{"type":"disabled"},"messages":[{"role":"user","content":"q"}]}`},
	{"messages: effort", "/v1/messages", `{"model":"tiny","max_tokens":5,"output_config":{"effort":"low"},"messages":[{"role":"user","content":"q"}]}`},
	{"messages: kwargs", "/v1/messages", `{"model":"tiny","max_tokens":5,"chat_template_kwargs":{"enable_thinking":false},"messages":[{"role":"user","content":"q"}]}`},
	{"messages: prefill", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"The answer is"}]}`},
	{"messages: tool use", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":1.50,"b":"ü<"}},{"type":"tool_use","id":"u","name":"g","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"r"},{"type":"tool_result","tool_use_id":"u","is_error":true,"content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]},{"type":"text","text":"and"}]}]}`},
	{"messages: text behind a tool result first", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":[{"type":"text","text":"before"},{"type":"tool_result","tool_use_id":"t"}]}]}`},
	{"messages: tool result null", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":null}]}]}`},
	{"messages: tools", "/v1/messages", `{"model":"tiny","max_tokens":5,"tools":[{"name":"f","description":"d","input_schema":{"properties":{"a":{"type":"string"}},"type":"object"}},{"name":"g","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"},"messages":[{"role":"user","content":"q"}]}`},
	{"messages: tools, none", "/v1/messages", `{"model":"tiny","max_tokens":5,"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"none"},"messages":[{"role":"user","content":"q"}]}`},
	{"messages: tools, one", "/v1/messages", `{"model":"tiny","max_tokens":5,"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"tool","name":"f"},"messages":[{"role":"user","content":"q"}]}`},
	{"messages: server tool", "/v1/messages", `{"model":"tiny","max_tokens":5,"tools":[{"type":"web_search_20250305","name":"web_search"}],"messages":[{"role":"user","content":"q"}]}`},
	{"messages: no tools", "/v1/messages", `{"model":"tiny","max_tokens":5,"tools":[],"messages":[{"role":"user","content":"q"}]}`},
	{"messages: schema without type", "/v1/messages", `{"model":"tiny","max_tokens":5,"tools":[{"name":"f","input_schema":{"properties":{}}}],"messages":[{"role":"user","content":"q"}]}`},
	{"messages: strange order of a schema", "/v1/messages", `{"model":"tiny","max_tokens":5,"tools":[{"input_schema":{"zeta":1,"type":"object","alpha":[1e3]},"strict":true,"cache_control":{"type":"ephemeral"},"description":null,"name":"f"}],"messages":[{"role":"user","content":"q"}]}`},
	{"messages: image", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]}]}`},
	{"messages: document", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"text","media_type":"text/plain","data":"abc"}},{"type":"text","text":"q"}]}]}`},
	{"messages: salt", "/v1/messages", `{"model":"tiny","max_tokens":5,"cache_salt":"s","messages":[{"role":"user","content":"q"}]}`},
	{"messages: special tokens", "/v1/messages", `{"model":"tiny","max_tokens":5,"add_special_tokens":true,"truncate_prompt_tokens":3,"add_generation_prompt":false,"messages":[{"role":"user","content":"q"}]}`},
	{"messages: none", "/v1/messages", `{"model":"tiny","max_tokens":5,"messages":[]}`},
	{"responses: text", "/v1/responses", `{"model":"tiny","input":"hi"}`},
	{"responses: no input", "/v1/responses", `{"model":"tiny"}`},
	{"responses: empty", "/v1/responses", `{"model":"tiny","input":""}`},
	{"responses: empty list", "/v1/responses", `{"model":"tiny","input":[]}`},
	{"responses: instructions empty", "/v1/responses", `{"model":"tiny","instructions":"","input":"hi"}`},
	{"responses: instructions and system", "/v1/responses", `{"model":"tiny","instructions":"i","input":[{"role":"system","content":"s"},{"role":"user","content":"q"}]}`},
	{"responses: developer", "/v1/responses", `{"model":"tiny","input":[{"role":"developer","content":"s"},{"role":"user","content":"q"}]}`},
	{"responses: input_text", "/v1/responses", `{"model":"tiny","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]}]}`},
	{"responses: output_text", "/v1/responses", `{"model":"tiny","input":[{"role":"user","content":"q"},{"type":"message","id":"m","status":"completed","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]}]},{"role":"user","content":"q"}]}`},
	{"responses: refusal", "/v1/responses", `{"model":"tiny","input":[{"role":"user","content":"q"},{"type":"message","id":"m","status":"completed","role":"assistant","content":[{"type":"refusal","refusal":"no"}]},{"role":"user","content":"q"}]}`},
	{"responses: reasoning item", "/v1/responses", `{"model":"tiny","input":[{"role":"user","content":"q"},{"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},{"role":"assistant","content":"a"},{"role":"user","content":"q"}]}`},
	{"responses: calls", "/v1/responses", `{"model":"tiny","input":[{"role":"user","content":"q"},{"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":1.0}"},{"type":"function_call","call_id":"d","name":"g","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"r"},{"type":"function_call_output","call_id":"d","output":[{"type":"input_text","text":"s"}]}]}`},
	{"responses: ends with the assistant", "/v1/responses", `{"model":"tiny","input":[{"role":"user","content":"q"},{"role":"assistant","content":"so far"}]}`},
	{"responses: partial", "/v1/responses", `{"model":"tiny","input":[{"role":"user","content":"q"},{"type":"message","id":"m","role":"assistant","status":"in_progress","content":[{"type":"output_text","text":"so far","annotations":[]}]}]}`},
	{"responses: effort", "/v1/responses", `{"model":"tiny","input":"q","reasoning":{"effort":"none"}}`},
	{"responses: effort high", "/v1/responses", `{"model":"tiny","input":"q","reasoning":{"effort":"high"}}`},
	{"responses: kwargs", "/v1/responses", `{"model":"tiny","input":"q","chat_template_kwargs":{"enable_thinking":false}}`},
	{"responses: format", "/v1/responses", `{"model":"tiny","input":"q","text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}}}`},
	{"responses: tools", "/v1/responses", `{"model":"tiny","input":"q","tools":[{"type":"function","name":"f","description":"d","strict":true,"parameters":{"type":"object","properties":{}}}],"tool_choice":"none"}`},
	{"responses: tools bare", "/v1/responses", `{"model":"tiny","input":"q","tools":[{"type":"function","name":"f","parameters":null}]}`},
	{"responses: no tools", "/v1/responses", `{"model":"tiny","input":"q","tools":[]}`},
	{"responses: truncation", "/v1/responses", `{"model":"tiny","input":"q","truncation":"auto","max_output_tokens":5}`},
	{"responses: salt", "/v1/responses", `{"model":"tiny","input":"q","cache_salt":"s"}`},
	{"responses: previous", "/v1/responses", `{"model":"tiny","input":"q","previous_response_id":"resp_1"}`},
	{"responses: previous messages", "/v1/responses", `{"model":"tiny","input":"q","previous_input_messages":[{"role":"user","content":"before"}]}`},
	{"responses: image", "/v1/responses", `{"model":"tiny","input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo=","detail":"auto"}]}]}`},
	{"responses: content null", "/v1/responses", `{"model":"tiny","input":[{"role":"user","content":null}]}`},
	{"responses: special tokens", "/v1/responses", `{"model":"tiny","input":"q","add_special_tokens":true,"truncate_prompt_tokens":3,"add_generation_prompt":false}`},
}

// oddRequests: whatever the engine takes is resolved to its ids or not at all, and Parse
// refuses nothing that the engine takes.
func (f *fleet) oddRequests(t *testing.T) {
	res, err := prompt.New(prompt.Config{
		Models: map[string]string{"tiny": f.model}, Client: f.client, Deadline: 30 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	rungs := map[string]int{}
	for _, odd := range oddBodies {
		t.Run(odd.name, func(t *testing.T) {
			raw, status := f.raw(t, f.engines[0].url+odd.path+"/render", odd.body)
			if status != http.StatusOK {
				rungs["refused"]++
				t.Logf("the engine answers %d %.120s", status, raw)
				return
			}
			want, err := readRendered(raw)
			if err != nil {
				t.Fatal(err)
			}
			req, err := openai.Parse(odd.path, []byte(odd.body))
			if err != nil {
				t.Fatalf("Parse refuses it: %v", err)
			}
			for _, url := range []string{"", f.engines[0].url} {
				got, err := res.Resolve(t.Context(), req, url)
				if err != nil {
					t.Fatal(err)
				}
				if got.TokenIDs == nil {
					t.Logf("no ids (engine %q): %s", url, got.Reason)
					continue
				}
				if d := difference(got.TokenIDs, want); d != "" {
					t.Errorf("rung %s: %s", got.Rung, d)
				}
				if url != "" {
					rungs[got.Rung]++
				}
			}
		})
	}
	t.Logf("%d odd requests: %v", len(oddBodies), rungs)
}

// readRendered reads an answer of a render endpoint: an object, or a list with one for each prompt.
func readRendered(raw []byte) ([][]uint32, error) {
	if !strings.HasPrefix(string(raw), "[") {
		raw = append(append([]byte("["), raw...), ']')
	}
	var list []struct {
		TokenIDs []uint32 `json:"token_ids"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	var ids [][]uint32
	for _, o := range list {
		ids = append(ids, o.TokenIDs)
	}
	return ids, nil
}
