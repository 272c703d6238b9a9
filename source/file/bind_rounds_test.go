package file

import (
	"strings"
	"sync/atomic"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

// Where a change of one list makes room, one that waits for it is used, although no file is new that refers to both.
func TestListMakesRoom(t *testing.T) {
	onHost(t, func(h *host) {
		h.limits.FrontendEndpoints = 5
		h.write("web.toml", serviceFrom("web", fromList)+serviceFrom("api", `endpoints_from = "api.endpoints.json"`))
		h.write("web.endpoints.json", listOfN(2))
		h.write("api.endpoints.json", listOfN(2))
		h.start()
		moment()
		h.set("web.endpoints.json", listOfN(4))
		h.use("too many", "api 2, web 2")
		h.set("api.endpoints.json", listOfN(1))
		h.use("room", "api 1, web 4")
		h.say("room", "api.endpoints.json accepted 0; web.endpoints.json accepted 0; web.toml accepted 2", "")
	})
}

// All lists of a step that do not fit a file wait, also where it does not fit one that is used already.
func TestListsGivenUpTogether(t *testing.T) {
	for _, refused := range []string{"api", "web"} {
		t.Run(refused, func(t *testing.T) {
			onHost(t, func(h *host) {
				var refuse atomic.Bool
				h.check = func(s *source.Service) (list []source.Problem) {
					if refuse.Load() && s.Name == refused && len(s.Endpoints) > 1 {
						list = []source.Problem{{Path: source.At("endpoints", 1), Msg: "one endpoint at most here"}}
					}
					return list
				}
				h.write("all.toml", serviceFrom("web", fromList)+serviceFrom("api", `endpoints_from = "api.endpoints.json"`)+serviceFrom("mid", `endpoints_from = "mid.endpoints.json"`))
				for _, name := range []string{"web", "api", "mid"} {
					h.write(name+".endpoints.json", listOfN(2))
				}
				h.start()
				moment()
				refuse.Store(true)
				for _, name := range []string{"web", "api", "mid"} {
					if name != refused {
						h.write(name+".endpoints.json", `["10.1.0.9", "fd00::1"]`)
					}
				}
				h.src.Revalidate()
				moment()
				h.use("refused", "api 2, mid 2, web 2")
				if got := strings.Count(h.states(), "endpoints.json stale"); got != 3 {
					t.Errorf("files %s", h.states())
				}
			})
		})
	}
}
