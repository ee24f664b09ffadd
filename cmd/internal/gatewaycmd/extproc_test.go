package gatewaycmd

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// TestExtProcAlone: a gateway that only picks, without a port for clients.
func TestExtProcAlone(t *testing.T) {
	socket := "unix://" + filepath.Join(t.TempDir(), "picker.sock")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	log := &syncBuffer{}
	go func() {
		ended <- Main(ctx, []string{
			"--listen", "", "--admin-listen", "127.0.0.1:0", "--gossip-enabled=false", "--endpoints", "10.0.0.1:8000,10.0.0.2:8000", "--drain-wait", "2s",
			"--ext-proc-listen", socket, "--ext-proc-fallbacks", "1",
		}, "test", log, log)
	}()
	for until := time.Now().Add(10 * time.Second); !strings.Contains(log.String(), "msg=serving") && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	status, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: "readiness"})
	for until := time.Now().Add(5 * time.Second); err == nil && status.Status != healthv1.HealthCheckResponse_SERVING && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
		status, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: "readiness"})
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	headers := &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":method", RawValue: []byte("GET")}, {Key: ":path", RawValue: []byte("/v1/models")}}}
	if err := stream.Send(&extprocv3.ProcessingRequest{
		Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headers, EndOfStream: true}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED},
	}); err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	picked := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"].GetStringValue()
	if picked != "10.0.0.1:8000,10.0.0.2:8000" && picked != "10.0.0.2:8000,10.0.0.1:8000" {
		t.Errorf("picked %q", picked)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d\n%s", code, log.String())
	}
}
