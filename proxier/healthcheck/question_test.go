package healthcheck

import (
	"net/netip"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/structtest"
	"svcproxy.dev/svcproxy/source"
)

// TestEveryFieldMakesAnotherQuestion changes each field of a check: all but two make it another question.
func TestEveryFieldMakesAnotherQuestion(t *testing.T) {
	ask := func(c *source.HealthCheck) Question {
		q := question(1, c)
		q.At = netip.MustParseAddrPort("192.0.2.1:80") // not by the check's port
		return q
	}
	whole := ask(structtest.Filled[source.HealthCheck]())
	paths := map[Question]string{whole: "nothing"}
	for path, c := range structtest.Changes[source.HealthCheck]() {
		q := ask(c)
		if path == ".Port" || path == ".Refuse" {
			if q != whole {
				t.Errorf("%s makes another question", path)
			}
			continue
		}
		if other, ok := paths[q]; ok {
			t.Errorf("changes of %s and of %s are the same question", path, other)
		}
		paths[q] = path
	}
	other := whole
	other.At = netip.MustParseAddrPort("192.0.2.1:81")
	if other.phase() == whole.phase() {
		t.Error("another address has the same phase")
	}
}

// TestQuestionsOfExec: the program is told the service, so that each asks for itself.
func TestQuestionsOfExec(t *testing.T) {
	for of, same := range map[source.CheckType]bool{source.CheckTCP: true, source.CheckExec: false} {
		check := every(time.Second)
		check.Type, check.Port = of, 80
		a := Ask(&source.Service{Key: source.Key{Name: "a"}, HealthCheck: check}, &source.Endpoint{})
		b := Ask(&source.Service{Key: source.Key{Name: "b"}, HealthCheck: check}, &source.Endpoint{})
		if (a == b) != same {
			t.Errorf("%s: two services ask the same: %v", of, a == b)
		}
	}
}
