"""The pytest plugin offers its fixtures to a test outside this repository."""

pytest_plugins = ("pytester",)


def test_an_outside_test_gets_the_fixtures(pytester, request):
    pytester.makepyfile(
        """
        import torch

        def test_fixtures(isolated_manager, inline_entry_points, fake_capability, poison, assert_close):
            assert isolated_manager().get_plugins() == set()
            (entry,) = inline_entry_points([("mine", object())])
            assert entry.name == "mine"
            assert fake_capability("sm90", kernels=["paged"]).architecture == "sm90"
            assert poison(torch.zeros(2)).isnan().all()
            assert_close(torch.ones(2), torch.ones(2))
        """
    )
    loaded = {getattr(plugin, "__name__", "") for plugin in request.config.pluginmanager.get_plugins()}
    # Where the distribution is installed its entry point loads the plugin; from a source tree -p does.
    arguments = [] if "adaverify_testing.plugin" in loaded else ["-p", "adaverify_testing.plugin"]
    result = pytester.runpytest_subprocess(*arguments, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


def test_loading_the_plugin_imports_neither_torch_nor_hypothesis(pytester):
    code = (
        "import sys, adaverify_testing.plugin\n"
        "assert not {'torch', 'hypothesis', 'triton'} & set(sys.modules), sorted(sys.modules)\n"
    )
    result = pytester.runpython_c(code)
    assert result.ret == 0, result.stderr.str()
