package main

import (
	"os"
	"os/signal"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/daemon"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
)

func runCommand(p *program) *cobra.Command {
	var flags configs.Flags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "The daemon, in the foreground",
		Long: `Run reads services and settings, keeps the kernel in step with them, and
watches both. SIGHUP reads everything again. SIGTERM stops within 1 s and leaves
the kernel as it is: traffic goes on. Flags win over svcproxy.toml.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.queueLog()
			if err := mayAdminister("run"); err != nil {
				return err
			}
			outliveReaders()
			hup := make(chan os.Signal, 1)
			signal.Notify(hup, unix.SIGHUP)
			defer signal.Stop(hup)
			watchdog, err := systemd.SdWatchdogEnabled(false)
			if err != nil {
				return err
			}
			return daemon.Run(cmd.Context(), daemon.Options{
				ConfigDir: p.dirs.config, StateDir: p.dirs.state, RunDir: p.dirs.run,
				Namespace: control.NamespaceName, Version: release(),
				Load: func(path string) (configs.Settings, []source.Fault, error) {
					return load(path, &flags)
				},
				Reload: hup,
				Notify: func(state string) { _, _ = systemd.SdNotify(false, state) }, // what is lost is followed by the next of its kind
				Watch:  watchdog,
				Stderr: p.log,
			})
		},
	}
	flags.Bind(cmd.Flags())
	return cmd
}

// outliveReaders has this process go on when nobody reads its output any more, as where the program that takes its log has
// ended: else Go ends it by SIGPIPE. The signal is caught and not ignored, which programs that are started would inherit.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) }
