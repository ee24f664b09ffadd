package chat

import (
	"bytes"
	"errors"
	"strings"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat/jinja"
)

// continueTag marks the end of the message to be continued (transformers uses
// the same text).
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// markFinal puts continueTag behind the last message and returns its text.
func (s *source) markFinal(messages *jinja.List) (string, error) {
	none := errors.New("continue_final_message: the final message has no text to continue")
	last, ok := messages.Items[len(messages.Items)-1].(*jinja.Dict)
	if !ok || !s.content {
		return "", none
	}
	content, _ := last.Get("content")
	switch content := content.(type) {
	case string:
		last.Set("content", content+continueTag)
		return content, nil
	case *jinja.List:
		for i := len(content.Items) - 1; i >= 0; i-- {
			part, ok := content.Items[i].(*jinja.Dict)
			if !ok {
				continue
			}
			if v, ok := part.Get("text"); ok {
				text, _ := v.(string)
				part.Set("text", text+continueTag)
				return text, nil
			}
		}
	}
	return "", none
}

// cutFinal cuts what was rendered from start on where the final message ends.
func cutFinal(out []byte, start int, final string) ([]byte, error) {
	text, tag := out[start:], []byte(strings.TrimSpace(continueTag))
	at := bytes.LastIndex(text, tag)
	if at < 0 || !bytes.Contains(text, []byte(jinja.TrimSpace(final))) {
		return out[:start], errors.New("continue_final_message: the template does not show the final message")
	}
	if bytes.HasPrefix(text[at:], []byte(continueTag)) {
		return out[:start+at], nil
	}
	return out[:start+len(jinja.TrimRightSpace(string(text[:at])))], nil
}
