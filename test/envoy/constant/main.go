// Command constant is an endpoint picker that gives every request the same answer. It stands for any
// other router where Grapevine only watches, and it is the baseline of what a picker of one's own adds: it
// answers without looking, as soon as the protocol lets it.
//
// It follows the body modes that Envoy names in the first message of a stream, and gives back every byte
// that it is handed in full duplex. Observing streams get no answer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	destination = "x-gateway-destination-endpoint"
	namespace   = "envoy.lb"
	// maxChunk is what one body response may carry, as other pickers have it.
	maxChunk = 62_000
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "constant:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("constant", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:0", "host:port or unix:///path")
	pick := flags.String("pick", "", "host:port of the pod, or an ordered list host:port,host:port")
	trace := flags.Bool("trace", false, "print each message")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *pick == "" {
		return errors.New("-pick is empty: give the pod's host:port")
	}
	network, address := "tcp", *listen
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, address = "unix", path
		_ = os.Remove(path) // of one that was killed
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	p, err := newPicker(*pick)
	if err != nil {
		return err
	}
	p.trace = *trace
	s := grpc.NewServer(grpc.MaxRecvMsgSize(64<<20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true})) // Envoy pings
	extprocv3.RegisterExternalProcessorServer(s, p)
	h := health.NewServer()
	h.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(s, h)
	context.AfterFunc(ctx, s.Stop)
	fmt.Println("listening on", l.Addr())
	return s.Serve(l)
}

// picker answers every stream alike.
type picker struct {
	extprocv3.UnimplementedExternalProcessorServer
	mutation *extprocv3.HeaderMutation
	metadata *structpb.Struct
	streams  atomic.Int64
	trace    bool
}

func newPicker(pick string) (*picker, error) {
	metadata, err := structpb.NewStruct(map[string]any{namespace: map[string]any{destination: pick}})
	if err != nil {
		return nil, err
	}
	return &picker{
		metadata: metadata,
		mutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{{
			Header:       &corev3.HeaderValue{Key: destination, RawValue: []byte(pick)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}}},
	}, nil
}

// Process answers one request's messages.
func (p *picker) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	n := p.streams.Add(1)
	var modes *extprocv3.ProtocolConfiguration
	for {
		in, err := stream.Recv()
		if p.trace {
			p.print(n, in, err)
		}
		switch {
		case errors.Is(err, io.EOF), status.Code(err) == codes.Canceled:
			return nil // the request is over
		case err != nil:
			return err
		case in.ObservabilityMode:
			continue
		}
		if c := in.GetProtocolConfig(); c != nil {
			modes = c
		}
		for _, out := range p.answers(in, modes) {
			if err := stream.Send(out); err != nil {
				return err
			}
		}
	}
}

// answers to one message.
func (p *picker) answers(in *extprocv3.ProcessingRequest, modes *extprocv3.ProtocolConfiguration) []*extprocv3.ProcessingResponse {
	common := func() *extprocv3.CommonResponse {
		return &extprocv3.CommonResponse{HeaderMutation: p.mutation, ClearRouteCache: true}
	}
	switch m := in.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		h := &extprocv3.HeadersResponse{}
		out := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: h}}
		if modes.GetRequestBodyMode() != filterv3.ProcessingMode_BUFFERED || m.RequestHeaders.EndOfStream {
			h.Response, out.DynamicMetadata = common(), p.metadata
		}
		return []*extprocv3.ProcessingResponse{out}
	case *extprocv3.ProcessingRequest_RequestBody:
		if modes.GetRequestBodyMode() == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
			return streamed(m.RequestBody, func(b *extprocv3.BodyResponse) *extprocv3.ProcessingResponse {
				return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: b}}
			})
		}
		return []*extprocv3.ProcessingResponse{{
			Response:        &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common()}},
			DynamicMetadata: p.metadata,
		}}
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}}
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}}}
	case *extprocv3.ProcessingRequest_ResponseBody:
		if modes.GetResponseBodyMode() == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
			return streamed(m.ResponseBody, func(b *extprocv3.BodyResponse) *extprocv3.ProcessingResponse {
				return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: b}}
			})
		}
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{}}}}
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}}
	}
	return nil
}

// streamed gives back the bytes of a part of a body.
func streamed(in *extprocv3.HttpBody, wrap func(*extprocv3.BodyResponse) *extprocv3.ProcessingResponse) []*extprocv3.ProcessingResponse {
	var out []*extprocv3.ProcessingResponse
	for body, more := in.Body, true; more; {
		n := min(len(body), maxChunk)
		more = n < len(body)
		part := &extprocv3.StreamedBodyResponse{Body: body[:n], EndOfStream: in.EndOfStream && !more}
		out = append(out, wrap(&extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
			Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: part},
		}}}))
		body = body[n:]
	}
	return out
}

// print shows a message, for people.
func (p *picker) print(n int64, in *extprocv3.ProcessingRequest, err error) {
	if err != nil {
		fmt.Printf("%s %d ends: %v\n", time.Now().Format(time.StampMilli), n, err)
		return
	}
	fmt.Printf("%s %d %T observing=%v eos=%v body=%d modes=%v attributes=%v metadata=%v\n", time.Now().Format(time.StampMilli), n, in.Request, in.ObservabilityMode,
		in.GetRequestHeaders().GetEndOfStream() || in.GetRequestBody().GetEndOfStream() || in.GetResponseBody().GetEndOfStream(),
		len(in.GetRequestBody().GetBody())+len(in.GetResponseBody().GetBody()), in.ProtocolConfig, in.Attributes, in.MetadataContext)
}
