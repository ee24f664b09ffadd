package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/grapevine-llm/grapevine/cmd/internal/config"
	"github.com/grapevine-llm/grapevine/cmd/internal/doctor"
)

// newDoctorCommand is `grapevine doctor`: what is wrong with a fleet, and what to do.
func newDoctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Find out what is wrong: keys, seed, ports, events, versions, clocks",
		Example: `  grapevine doctor                                   # in the pod of an agent or a gateway
  grapevine doctor --gateway http://127.0.0.1:9090 --agent http://10.0.0.5:9464 --engine http://10.0.0.5:8000
  grapevine doctor --join grapevine-gossip.grapevine:7946 --gossip-key-file gossip.key --json`,
		DisableFlagParsing: true, // config reads flags, environment and file in one go
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg := doctor.Default()
			fs := pflag.NewFlagSet("doctor", pflag.ContinueOnError)
			if run, code := config.Start(fs, about(cmd), args, &cfg, version, cmd.OutOrStdout(), cmd.ErrOrStderr()); !run {
				if code == 0 {
					return nil
				}
				return exitStatus(code)
			}
			report, err := doctor.Run(cmd.Context(), cfg, version)
			if errors.Is(err, doctor.ErrNobody) {
				return usageError(err.Error())
			}
			if err != nil {
				return err
			}
			if cfg.JSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				enc.SetEscapeHTML(false)
				err = enc.Encode(report)
			} else {
				err = report.Write(cmd.OutOrStdout())
			}
			if err == nil && report.Count(doctor.Failed) > 0 {
				return exitStatus(1)
			}
			return err
		},
	}
}
