package flows_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier/flows/flowstest"
)

// Flows to a frontend that goes while no worker runs, or whose worker ends before it has looked, are removed by the next
// worker; those that were not translated, or were by others, elsewhere, stay.
func TestFlowsToFrontendsOfThePast(t *testing.T) {
	for name, goes := range map[string]func(*worker){
		"while nothing runs": func(*worker) {},
		"before a look": func(w *worker) {
			w.track.Set(func() { w.track.Fail = errors.New("the table does not answer") })
			w.gone(1)
			synctest.Wait()
		},
		"before it came": func(w *worker) { w.expect(3, "10.0.0.3") }, // and nobody knows whether it has
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, track := t.TempDir(), &flowstest.Tracking{}
				w, stop := startWorkerIn(t, dir, track, overUDP)
				w.dns(1, "10.0.0.1")
				w.dns(2, "10.0.0.2")
				time.Sleep(time.Minute)
				goes(w)
				stop()

				stay := []flowstest.Flow{{"", "10.96.0.1:53", "10.96.0.1:53"}, toDNS(2, "10.0.0.2"), toDNS(9, "10.0.0.1")}
				track.Set(func() {
					track.Fail, track.Flows = nil, append([]flowstest.Flow{toDNS(1, "10.0.0.1"), toDNS(3, "10.0.0.3")}, stay...)
				})
				w, stop = startWorkerIn(t, dir, track, overUDP)
				w.dns(2, "10.0.0.2")
				time.Sleep(time.Minute)
				left := stay
				if name != "before it came" { // it was never heard of
					left = append([]flowstest.Flow{toDNS(3, "10.0.0.3")}, stay...)
				}
				track.Expect(t, left...)
				stop()

				// What was looked for is nobody's any more.
				track.Set(func() { track.Flows = []flowstest.Flow{toDNS(1, "10.0.0.7")} })
				w, stop = startWorkerIn(t, dir, track, overUDP)
				w.dns(2, "10.0.0.2")
				time.Sleep(time.Minute)
				track.Expect(t, toDNS(1, "10.0.0.7"))
				stop()
			})
		})
	}
}

// A frontend that is about to come while others are looked for stays recorded.
func TestComingFrontendsStayRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, track := t.TempDir(), &flowstest.Tracking{}
		w, stop := startWorkerIn(t, dir, track, overUDP)
		w.dns(1, "10.0.0.1")
		w.gone(1)
		w.expect(2, "10.0.0.2")
		time.Sleep(time.Minute)
		stop()
		text, err := os.ReadFile(filepath.Join(dir, "flows-ipv4-udp.journal"))
		if err != nil || !strings.Contains(string(text), "\nserved 10.96.0.2:53\n") || strings.Contains(string(text), "gone 10.96.0.2:53") {
			t.Errorf("recorded is %q, %v; log: %s", text, err, w.log.String())
		}
	})
}

// Without a directory to write in, workers work and say what is lost, once.
func TestRecordThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "run")
		w, stop := startWorkerIn(t, dir, &flowstest.Tracking{}, overUDP)
		if err := os.WriteFile(dir, nil, 0o600); err != nil { // a file where the directory should be
			t.Fatal(err)
		}
		w.dns(1, "10.0.0.1")
		w.dns(2, "10.0.0.2")
		w.gone(1)
		time.Sleep(time.Minute)
		stop()
		if n := strings.Count(w.log.String(), "a restart will not know"); n != 1 {
			t.Errorf("said %d times: %s", n, w.log.String())
		}
	})
}

// Where another program translates packets to what a frontend had, its flows go on after some looks.
func TestPastFrontendsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, track := t.TempDir(), &flowstest.Tracking{}
		w, stop := startWorkerIn(t, dir, track, overUDP)
		w.dns(1, "10.0.0.1")
		w.dns(2, "10.0.0.2")
		time.Sleep(time.Minute)
		stop()

		others := toDNS(1, "10.9.0.1")
		track.Set(func() { track.Flows, track.Back = []flowstest.Flow{others}, []flowstest.Flow{others} })
		w, stop = startWorkerIn(t, dir, track, overUDP)
		w.dns(2, "10.0.0.2")
		time.Sleep(time.Minute)
		track.Set(func() { track.Flows, track.Back = []flowstest.Flow{others}, nil })
		w.dns(2, "10.0.0.3")
		time.Sleep(time.Minute)
		track.Expect(t, others)
		stop()
		if text, err := os.ReadFile(filepath.Join(dir, "flows-ipv4-udp.journal")); err != nil || !strings.Contains(string(text), "gone 10.96.0.1:53") {
			t.Errorf("recorded is %q, %v", text, err)
		}
	})
}

// A frontend that a failed Sync may have made, and that goes before the next one, is looked for.
func TestFrontendThatCameAndWentUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		track := &flowstest.Tracking{}
		w, stop := startWorkerIn(t, t.TempDir(), track, overUDP)
		w.dns(1, "10.0.0.1")
		time.Sleep(time.Minute)
		w.expect(3, "10.0.0.3")
		track.Set(func() { track.Flows = []flowstest.Flow{toDNS(3, "10.0.0.3"), toDNS(1, "10.0.0.1")} })
		w.dns(1, "10.0.0.1")
		time.Sleep(time.Minute)
		track.Expect(t, toDNS(1, "10.0.0.1"))
		stop()
	})
}
