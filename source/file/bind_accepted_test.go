package file

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// portNamed is a service with one port, and these addresses besides its own.
func portNamed(port, vips string) string {
	text := strings.Replace(serviceFrom("web", fromList), "{ port = 80 }", `{ name = "`+port+`", port = 80 }`, 1)
	return strings.Replace(text, `"10.96.0.119"`, `"10.96.0.119"`+vips, 1)
}

// listFor is a list of two endpoints with a port of this name.
func listFor(port string) string {
	return `[{"address": "10.1.0.1", "ports": {"` + port + `": 8080}}, {"address": "10.1.0.2", "ports": {"` + port + `": 8080}}]`
}

// A service and its list that change together, where another file has what the service claims then,
// stay as they were, whatever comes next.
func TestRefusedFileKeepsItsList(t *testing.T) {
	for name, next := range map[string]func(h *host){
		"broken":           func(h *host) { h.set("web.toml", "[[services") },
		"broken, restart":  func(h *host) { h.set("web.toml", "[[services"); h.restart() },
		"restart":          func(h *host) { h.restart() },
		"restarts, broken": func(h *host) { h.restart(); h.restart(); h.set("web.toml", "[[services") },
		"broken while off": func(h *host) { h.stop(); h.write("web.toml", "[[services"); h.start(); moment() },
		"all broken, restart": func(h *host) {
			h.set("web.toml", "[[services", "web.endpoints.json", "")
			h.restart()
		},
		"held": func(h *host) {
			h.src.SetGuard(Guard{Manual: true})
			h.set("web.toml", portNamed("other", ""))
			h.restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *host) {
				h.write("other.toml", strings.Replace(serviceFrom("other", "endpoints = []"), "10.96.0.111", "10.96.0.1", 1))
				h.start()
				moment()
				h.set("web.toml", portNamed("http", ""), "web.endpoints.json", listFor("http"))
				h.use("at first", "other 0, web 2")
				h.set("web.toml", portNamed("web", `, "10.96.0.1"`), "web.endpoints.json", listFor("web"))
				h.use("refused", "other 0, web 2")
				next(h)
				h.use(name, "other 0, web 2")
				if _, steps := h.sink.look(); slices.Contains(steps, "other 0, web 0") {
					t.Errorf("without endpoints meanwhile: %q", steps)
				}
				h.set("web.endpoints.json", listFor("http")+"\n")
				h.use("the list as before", "other 0, web 2")
				h.src.SetGuard(Guard{})
				h.set("web.toml", portNamed("web", ""), "web.endpoints.json", `[{"address": "10.1.0.1", "ports": {"web": 8080}}]`)
				h.use("put right", "other 0, web 1")
				h.change(func() {})
				h.change(func() { check(t, os.Chtimes(h.path("web.toml"), time.Unix(1e9, 0), time.Unix(1e9, 0))) })
				if n := len(h.src.decisions.kept); n > 0 {
					t.Errorf("%d files with lists of their own are known still", n)
				}
			})
		})
	}
}
