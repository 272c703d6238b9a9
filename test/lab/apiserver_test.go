//go:build netns

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/pace"
)

// An apiServer on node lists objects of Kubernetes, by the last word of their path, as one before 1.34 does. Its watches never
// report a change.
type apiServer struct {
	objects map[string][]any
	version int
	http    *http.Server
}

// apiAddr is where the API server listens.
const apiAddr = "127.0.0.1:6443"

// start begins to listen.
func (a *apiServer) start(t *testing.T, node *Host) {
	t.Helper()
	var l net.Listener
	err := node.Do(func() (err error) {
		l, err = echotest.Listen(apiAddr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	a.http = &http.Server{Handler: a}
	go func() { _ = a.http.Serve(l) }()
	t.Cleanup(a.stop)
}

// stop cuts all connections.
func (a *apiServer) stop() { _ = a.http.Close() }

// ServeHTTP implements http.Handler.
func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kinds := map[string][2]string{"services": {"ServiceList", "v1"}, "endpointslices": {"EndpointSliceList", "discovery.k8s.io/v1"}, "nodes": {"NodeList", "v1"}}
	resource := path.Base(r.URL.Path)
	kind, known := kinds[resource]
	w.Header().Set("Content-Type", "application/json")
	switch {
	case !known || r.Method != http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
	case r.FormValue("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": http.StatusUnprocessableEntity})
	case r.FormValue("watch") != "":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": kind[0], "apiVersion": kind[1], "metadata": map[string]any{"resourceVersion": fmt.Sprint(a.version)}, "items": append([]any{}, a.objects[resource]...),
		})
	}
}

// objectsOf returns the objects of a service of port 80, TCP and UDP, with one endpoint.
func objectsOf(name string, vip, endpoint Dual) map[string][]any {
	type object = map[string]any
	var slices, ports, targets []any
	for _, protocol := range []string{"TCP", "UDP"} {
		ports = append(ports, object{"name": strings.ToLower(protocol), "protocol": protocol, "port": 80, "targetPort": 8080})
		targets = append(targets, object{"name": strings.ToLower(protocol), "protocol": protocol, "port": 8080})
	}
	for family, addr := range map[string]netip.Addr{"IPv4": endpoint.V4, "IPv6": endpoint.V6} {
		slices = append(slices, object{
			"metadata":    object{"namespace": "default", "name": name + "-" + strings.ToLower(family), "labels": object{"kubernetes.io/service-name": name}},
			"addressType": family, "ports": targets, "endpoints": []any{object{"addresses": []any{addr}, "conditions": object{"ready": true}}},
		})
	}
	return map[string][]any{
		"services": {object{
			"metadata": object{"namespace": "default", "name": name},
			"spec":     object{"type": "ClusterIP", "clusterIP": vip.V4, "clusterIPs": []any{vip.V4, vip.V6}, "ipFamilies": []any{"IPv4", "IPv6"}, "ports": ports},
		}},
		"endpointslices": slices,
	}
}

// An API server that comes back without any object, as one whose database was lost, takes no service from clients until the
// operator confirms it. A restart of the daemon changes nothing about that.
func TestEmptyAPIServer(t *testing.T) {
	for _, m := range modes {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			e := &env{Lab: newLab(t), mode: m, number: 1}
			full := &apiServer{version: 100, objects: objectsOf(e.name(), e.vip(1), e.Local[0].Addr())}
			full.start(t, e.Node)
			e.daemon = newDaemon(t, e.Lab, m)
			e.daemon.Env = []string{"KUBECONFIG="}
			e.settings = fmt.Sprintf("mode = %q\nnode_name = \"node\"\nsources = [\"kubernetes\"]\n[kubernetes]\napi_server = \"http://%s\"\n", m.name, apiAddr)
			if m.name == "ipvs" {
				e.settings += giveUpSoon
			}
			if err := errors.Join(m.prepare(e.Node), e.daemon.Settings(e.settings), e.daemon.Start()); err != nil {
				t.Fatalf("%v\n%s", err, e.daemon.LogTail(logLines))
			}
			served := check{from: e.Client, to: e.vip(1), want: by(e.Local[0])}
			e.expect(t, served)

			full.stop()
			(&apiServer{version: 5}).start(t, e.Node)
			e.held(t)
			e.expect(t, served)
			if err := errors.Join(e.daemon.Stop(), e.daemon.Start()); err != nil {
				t.Fatal(err)
			}
			e.held(t)
			e.expect(t, served)

			if out, err := e.daemon.Command("confirm"); err != nil {
				t.Fatalf("confirm: %v: %s", err, out)
			}
			served.want = e.givenUp()
			e.expect(t, served)
		})
	}
}

// held waits until status says that an answer of the server is held.
func (e *env) held(t *testing.T) {
	t.Helper()
	err := pace.Poll(pace.Scale(expectPatience), func() error {
		text, err := e.daemon.Command("status")
		if err == nil && !strings.Contains(text, "HELD") {
			err = fmt.Errorf("nothing is held:\n%s", text)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, e.daemon.LogTail(logLines))
	}
}
