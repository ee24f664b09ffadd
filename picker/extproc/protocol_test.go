package extproc

import (
	"bytes"
	"testing"
)

func TestFullDuplex(t *testing.T) {
	r := newRig(t, setup{})
	e := r.open()
	body := chatBody(100, "")
	e.send(post(fullDuplex, none), chunk(body, false), chunk(nil, true))
	list, back := e.picked(false)
	if !bytes.Equal(back, body) {
		t.Errorf("body came back as %q", back)
	}
	t.Log(list)
}
