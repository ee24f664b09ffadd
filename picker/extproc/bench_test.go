package extproc

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/grapevine-llm/grapevine/picker"
)

// constant answers as a picker that looks at nothing: what the way to and fro costs.
type constant struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (constant) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	p := pick{list: "10.0.0.1:8000", rank: -1}
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		var out []*extprocv3.ProcessingResponse
		switch {
		case m.GetRequestHeaders() != nil:
			out = append(out, requestHeaders(&extprocv3.CommonResponse{HeaderMutation: p.mutation(), ClearRouteCache: true}, p.metadata()))
		case m.GetRequestBody() != nil:
			out = pieces(nil, m.GetRequestBody().Body, m.GetRequestBody().EndOfStream, func(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse { return requestBody(c, nil) })
		}
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

// BenchmarkStream is one request through a stream in full duplex, by gRPC over loopback: against a picker that looks at
// nothing, which is the greatest part of it.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{8 << 10, 128 << 10, 1 << 20} {
		body := chatBody(size, "")
		b.Run(fmt.Sprintf("constant/KiB=%d", size>>10), func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			g := (&Server{opt: Options{MaxBodyBytes: 32 << 20}, health: health.NewServer()}).grpc()
			extprocv3.RegisterExternalProcessorServer(g, constant{})
			go g.Serve(l)
			defer g.Stop()
			benchStream(b, l.Addr().String(), body)
		})
		b.Run(fmt.Sprintf("ours/KiB=%d", size>>10), func(b *testing.B) {
			r := newRig(b, setup{pick: func(context.Context, picker.Request) (picker.Decision, error) {
				return picker.Decision{Endpoint: picker.Endpoint{ID: "10.0.0.1:8000"}}, nil
			}})
			benchStream(b, r.server.Addrs()[0].String(), body)
		})
	}
}

func benchStream(b *testing.B, address string, body []byte) {
	conn, err := grpc.NewClient(address, insecureClient(), grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(windowBytes))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	client := extprocv3.NewExternalProcessorClient(conn)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		stream, err := client.Process(ctx)
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body, false), chunk(nil, true)} {
			if err := stream.Send(m); err != nil {
				b.Fatal(err)
			}
		}
		for end := false; !end; {
			m, err := stream.Recv()
			if err != nil {
				b.Fatal(err)
			}
			end = m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream()
		}
		cancel()
	}
}
