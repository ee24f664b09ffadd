package extproc

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"

	"github.com/grapevine-llm/grapevine/picker/inbound"
)

// FuzzBody: whatever a body is and however it is cut, every byte comes back in order, once, with its end, and none before the
// pick.
func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[]}`), uint64(1), false)
	f.Add([]byte{}, uint64(2), false)
	f.Add([]byte{}, uint64(2), true)
	f.Add(bytes.Repeat([]byte("x"), 3*maxPiece+1), uint64(3), true)
	f.Fuzz(func(t *testing.T, body []byte, seed uint64, withTrailers bool) {
		rng := rand.New(rand.NewPCG(seed, 1))
		x := exchange{limit: len(body)}
		messages := append([]*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex)}, cut(rng, body, !withTrailers)...)
		if withTrailers {
			messages = append(messages, trailers())
		}
		for i, m := range messages {
			s, err := x.take(m)
			if err != nil || len(s.out) > 0 || s.pick != (i == len(messages)-1) {
				t.Fatalf("message %d of %d: %+v, %v", i, len(messages), s, err)
			}
		}
		d := x.demand()
		whole, done := d.body(new(inbound.Buffers))
		if !bytes.Equal(whole, body) {
			t.Fatal("another body is read")
		}
		done()
		check := func(out []*extprocv3.ProcessingResponse, part func(*extprocv3.ProcessingResponse) *extprocv3.BodyResponse, end bool) {
			var back []byte
			for i, m := range out {
				piece := part(m).GetResponse().GetBodyMutation().GetStreamedResponse()
				if piece == nil || len(piece.Body) > maxPiece || piece.EndOfStream != (end && i == len(out)-1) {
					t.Fatalf("piece %d of %d: %.100v", i, len(out), m)
				}
				back = append(back, piece.Body...)
			}
			if !bytes.Equal(back, body) {
				t.Fatalf("%d bytes came back of %d, or others", len(back), len(body))
			}
		}
		out := x.picked(pick{list: "e:1", rank: -1})
		if out[0].GetRequestHeaders() == nil {
			t.Fatal("the headers come first")
		}
		out = out[1:]
		if withTrailers {
			if out[len(out)-1].GetRequestTrailers() == nil {
				t.Fatal("the trailers come last")
			}
			out = out[:len(out)-1]
		}
		check(out, (*extprocv3.ProcessingResponse).GetRequestBody, !withTrailers)

		if _, err := x.take(respond("200", "text/event-stream", "")); err != nil {
			t.Fatal(err)
		}
		out = nil
		for _, m := range cut(rng, body, true) {
			s, err := x.take(responseChunk(string(m.GetRequestBody().Body), m.GetRequestBody().EndOfStream))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, s.out...)
		}
		check(out, (*extprocv3.ProcessingResponse).GetResponseBody, true)
	})
}

// FuzzMessages: no sequence of messages makes an exchange or an observation panic, ask for a pick twice, or answer a message with
// one that Envoy does not wait for.
func FuzzMessages(f *testing.F) {
	kinds := []*extprocv3.ProcessingRequest{
		post(fullDuplex, fullDuplex), post(buffered, streamed), post(partial, none), post(streamed, none), post(none, buffered), get("/v1/models", none), silent(post(none, none)),
		chunk([]byte(`{"model":"m"}`), false), chunk(nil, true), trailers(), respond("200", "text/event-stream", "a:1"), respond("503", "application/json", ""),
		responseChunk(firstEvent, false), responseChunk(wholeJSON, true), lastTrailers(), {},
	}
	f.Add([]byte{0, 7, 8, 10, 12, 13})
	f.Add([]byte{1, 7, 9, 10, 12, 14})
	f.Add([]byte{3, 7, 8, 255, 11, 13})
	f.Add([]byte{10, 12, 0, 7})
	f.Fuzz(func(t *testing.T, sequence []byte) {
		x := exchange{limit: 64}
		var o observation
		asked, picked := false, false
		for _, b := range sequence[:min(len(sequence), 64)] {
			if b >= 250 && asked && !picked {
				picked = true
				before := x.phase
				if out := x.picked(pick{list: "e:1", rank: -1}); (len(out) > 0) != (before == picking) {
					t.Fatalf("in phase %d the pick gives %v", before, out)
				}
				continue
			}
			m := kinds[int(b)%len(kinds)]
			o.take(proto.Clone(m).(*extprocv3.ProcessingRequest))
			s, err := x.take(m)
			var p *protocolError
			if err != nil {
				if !errors.As(err, &p) {
					t.Fatal(err)
				}
				return
			}
			if s.pick {
				if asked {
					t.Fatal("a pick was asked for twice")
				}
				asked = true
			}
			if s.refusal != nil {
				x.refuse(s.refusal, "r")
			}
			for _, out := range s.out {
				responding := m.GetResponseHeaders() != nil || m.GetResponseBody() != nil || m.GetResponseTrailers() != nil
				if answers := out.GetResponseHeaders() != nil || out.GetResponseBody() != nil || out.GetResponseTrailers() != nil; answers != responding {
					t.Fatalf("%v is answered with %v", m, out)
				}
			}
		}
		o.answer.outcome()
	})
}

func FuzzMetadata(f *testing.F) {
	for _, m := range []*corev3.Metadata{
		metadata(namespaceSubset, keySubset, list("10.0.0.1:8000", "")), metadata(namespaceLB, keyServed, list("x")), respond("200", "", "[::1]:80").MetadataContext, {},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		var m corev3.Metadata
		if proto.Unmarshal(b, &m) == nil {
			subsetOf(&m)
			servedBy(&m)
		}
	})
}
