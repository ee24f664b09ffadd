package chat

import (
	"errors"
	"fmt"
	"strings"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat/jinja"
)

// contentOf returns a message's content: text, its parts joined by line breaks,
// or the list of parts if the template wants that.
func (t *source) contentOf(in *jinja.Dict, role string, m *media) (any, error) {
	var parts []any
	raw, _ := in.Get("content")
	switch c := raw.(type) {
	case nil:
	case string:
		if role == "system" {
			parts = []any{c}
			break
		}
		if !t.parts {
			return raw, nil
		}
		return &jinja.List{Items: []any{textPart(c)}}, nil
	case *jinja.List:
		parts = c.Items
	default:
		return nil, errors.New("content is neither text nor a list of parts")
	}
	list := &jinja.List{}
	var texts []string
	for _, p := range parts {
		c, err := readPart(p, role, m)
		switch {
		case err != nil:
			return nil, err
		case c.skip:
		case t.parts:
			list.Items = append(list.Items, c.dict())
		case c.media != "":
			if !m.seen {
				m.seen = true
				texts = append([]string{m.text()}, texts...) // the engine puts it in front
			}
		case c.text != "":
			texts = append(texts, c.text)
		}
		if c.media != "" && t.parts && !m.seen {
			m.seen = true
			if m.variant > 0 {
				list.Items[len(list.Items)-1] = textPart(m.text())
			}
		}
	}
	if t.parts {
		return list, nil
	}
	if len(texts) == 1 {
		return texts[0], nil
	}
	return strings.Join(texts, "\n"), nil
}

func textPart(text string) *jinja.Dict {
	d := &jinja.Dict{}
	d.Set("type", "text")
	d.Set("text", text)
	return d
}

// part is one part of a message's content.
type part struct {
	text  string
	media string      // "image", "audio" or "video"
	tool  bool        // text is the name of a tool that is referred to
	extra *jinja.Dict // members that vLLM passes on, nil if there are none
	skip  bool        // a part without content
}

// dict is the form in which templates that take parts see one.
func (p part) dict() *jinja.Dict {
	d := &jinja.Dict{}
	switch {
	case p.tool:
		d.Set("type", "tool_reference")
		d.Set("name", p.text)
		return d
	case p.media != "":
		d.Set("type", p.media)
	default:
		d = textPart(p.text)
	}
	if p.extra != nil {
		for k, v := range p.extra.All() {
			d.Set(k, v)
		}
	}
	return d
}

// readPart reads a part. Those that are no text are an error if m is nil.
func readPart(p any, role string, m *media) (part, error) {
	if s, ok := p.(string); ok {
		return headerless(part{text: s}, role), nil
	}
	in, ok := p.(*jinja.Dict)
	if !ok {
		return part{}, errors.New("content part is neither text nor an object")
	}
	kind, _ := textOf(in, "type")
	if uuid, _ := in.Get("uuid"); uuid != nil {
		kind = mediaKey(in)
	}
	out := part{}
	for k, v := range in.All() {
		if !knownField(k) {
			if out.extra == nil {
				out.extra = &jinja.Dict{}
			}
			out.extra.Set(k, v)
		}
	}
	field := "text"
	switch kind {
	case "text", "input_text", "output_text":
	case "refusal", "thinking":
		field = kind
	case "tool_reference":
		field, out.tool = "name", true
	default:
		if out.media = mediaOf(kind); out.media == "" {
			return part{}, fmt.Errorf("content part of type %q", kind)
		}
		if m == nil {
			return part{}, ErrMultimodal
		}
		return out, nil
	}
	v, _ := in.Get(field)
	if v == nil && (kind == "text" || kind == "refusal") {
		return part{skip: true}, nil
	}
	if out.text, ok = v.(string); !ok {
		return part{}, fmt.Errorf("content part of type %s has no text", kind)
	}
	if kind == "text" {
		out = headerless(out, role)
	}
	return out, nil
}

// knownField tells of members of content parts that vLLM does not pass on.
func knownField(name string) bool {
	switch name {
	case "type", "uuid", "text", "refusal", "thinking", "closed", "data", "file", "name", "prompt_cache_breakpoint",
		"audio_embeds", "audio_url", "image_embeds", "image_pil", "image_url", "input_audio", "video_embeds", "video_url":
		return true
	}
	return false
}

// mediaKey is the type of a part with a uuid.
func mediaKey(in *jinja.Dict) string {
	for _, k := range [...]string{"image_url", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds",
		"audio_url", "input_audio", "video_url", "tool_reference"} {
		if _, ok := in.Get(k); ok {
			return k
		}
	}
	return ""
}

func mediaOf(kind string) string {
	switch kind {
	case "image_url", "input_image", "image_pil", "image_embeds":
		return "image"
	case "audio_url", "input_audio", "audio_embeds", "prompt_embeds":
		return "audio"
	case "video_url", "video_embeds":
		return "video"
	}
	return ""
}

// headerless applies withoutBillingHeader to a system message's text.
func headerless(p part, role string) part {
	if role == "system" {
		var keep bool
		p.text, keep = withoutBillingHeader(p.text)
		p.skip = !keep
	}
	return p
}

func onlyText(parts *jinja.List) bool {
	for _, p := range parts.Items {
		if d, ok := p.(*jinja.Dict); ok {
			if kind, _ := textOf(d, "type"); kind != "text" {
				return false
			}
		}
	}
	return true
}
