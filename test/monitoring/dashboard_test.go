package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const shipped = "../../configs/monitoring"

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A panel is one of the dashboard.
type panel struct {
	ID      int
	Title   string
	GridPos rectangle
	Targets []struct{ Expr, LegendFormat string }
}

// A rectangle is in the grid of Grafana, which is 24 wide.
type rectangle struct{ X, Y, W, H int }

const gridWidth = 24

func (r rectangle) overlaps(o rectangle) bool {
	return r.X < o.X+o.W && o.X < r.X+r.W && r.Y < o.Y+o.H && o.Y < r.Y+r.H
}

func panels(t *testing.T) []panel {
	t.Helper()
	var d struct{ Panels []panel }
	if err := json.Unmarshal([]byte(read(t, filepath.Join(shipped, "dashboard.json"))), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Panels) < 20 {
		t.Fatalf("%d panels found", len(d.Panels))
	}
	return d.Panels
}

// Each panel has a number and a place of its own, inside the grid.
func TestPanelsDoNotOverlap(t *testing.T) {
	all := panels(t)
	for i, p := range all {
		at := p.GridPos
		if at.X < 0 || at.Y < 0 || at.W < 1 || at.H < 1 || at.X+at.W > gridWidth {
			t.Errorf("panel %q is outside the grid: %+v", p.Title, at)
		}
		for _, o := range all[:i] {
			if at.overlaps(o.GridPos) {
				t.Errorf("panel %q (%+v) lies over %q (%+v)", p.Title, at, o.Title, o.GridPos)
			}
			if p.ID == o.ID {
				t.Errorf("panels %q and %q are both number %d", p.Title, o.Title, p.ID)
			}
		}
	}
}

// Hosts with the same files report the same numbers of services, endpoints and files, so these must not be added up over hosts.
var (
	ofFiles = regexp.MustCompile(`svcproxy_(services|services_all_failed|endpoints|files|faults|drains|service_endpoints|service_problem|announced_addresses|withheld_addresses)\b`)
	sums    = regexp.MustCompile(`\b(?:sum|count|avg)(?: by \(([^)]*)\))? ?\(([^()]*)\)`)
	anyHost = regexp.MustCompile(`\binstance\b`)
)

func TestPanelsDoNotAddHosts(t *testing.T) {
	found := 0
	for _, p := range panels(t) {
		for _, q := range p.Targets {
			if !strings.Contains(q.Expr, `instance=~"$instance"`) {
				t.Errorf("panel %q is not of the hosts that are chosen: %s", p.Title, q.Expr)
			}
			for _, m := range sums.FindAllStringSubmatch(q.Expr, -1) {
				if !ofFiles.MatchString(m[2]) {
					continue
				}
				if found++; !anyHost.MatchString(m[1]) {
					t.Errorf("panel %q adds what several hosts have of the same files: %s", p.Title, m[0])
				}
			}
		}
	}
	if found == 0 {
		t.Error("no sum for each host found")
	}
}

// A line of a graph that is of one host names it.
func TestPanelsNameHosts(t *testing.T) {
	over := regexp.MustCompile(`^(?:max|topk\(10, sum) by \([^)]*\) ?\(`) // hosts
	for _, p := range panels(t) {
		for _, q := range p.Targets {
			if q.LegendFormat != "" && !over.MatchString(q.Expr) && !strings.Contains(q.LegendFormat, "{{instance}}") {
				t.Errorf("panel %q does not name hosts: %s, %q", p.Title, q.Expr, q.LegendFormat)
			}
		}
	}
}
